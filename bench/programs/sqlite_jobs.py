"""sqlite in Python: blobs of 16 MiB go into a table in memory and come back."""

import os
import sqlite3

from work import MIB, check, clock, main


def blobs(count):
    blob = os.urandom(MIB) * 16
    with sqlite3.connect(":memory:") as base:
        base.execute("create table blobs (id integer primary key, data blob)")
        with clock():
            for number in range(count):
                base.execute("insert or replace into blobs values (?, ?)", (number % 8, blob))
                select = "select data from blobs where id = ?"
                (again,) = base.execute(select, (number % 8,)).fetchone()
        check(again == blob)


if __name__ == "__main__":
    main({"blobs": blobs})
