"""pyarrow: a table of 256 MiB becomes an IPC stream in memory and a table again."""

import numpy as np
import pyarrow as pa
from work import CHECK, MIB, check, clock, main


def ipc(count):
    columns = [np.arange(64 * MIB // 8, dtype=np.float64) + number for number in range(4)]
    table = pa.table({f"c{number}": column for number, column in enumerate(columns)})
    with clock():
        for _ in range(count):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, table.schema) as stream:
                stream.write_table(table)
            again = pa.ipc.open_stream(sink.getvalue()).read_all()
    if CHECK:
        check(again.equals(table))


if __name__ == "__main__":
    main({"ipc": ipc})
