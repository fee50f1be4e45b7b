"""redis-server under test; this client speaks its protocol over a Unix socket."""

import os
import signal
import socket
import subprocess
from functools import partial

from work import MIB, check, clock, listening, main, ready, short_folder, start, stop


class Client:
    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.buffer = bytearray(8 * MIB)

    def send(self, *words):
        head = b"*%d\r\n" % len(words)
        for word in words:
            head += b"$%d\r\n" % len(word)
            if len(word) > MIB // 2:  # not joined: our own copies are not the question
                self.socket.sendall(head)
                self.socket.sendall(word)
                head = b""
            else:
                head += word
            head += b"\r\n"
        self.socket.sendall(head)

    def line(self):
        """The first line of an answer, and how much of what follows came with it."""
        got = 0
        while (end := self.buffer.find(b"\r\n", 0, got)) < 0:
            got += self.receive(got)
        return bytes(self.buffer[:end]), end + 2, got

    def receive(self, at):
        got = self.socket.recv_into(memoryview(self.buffer)[at:])
        check(got > 0, "redis has closed the connection")
        return got

    def command(self, *words):
        self.send(*words)
        return self.line()[0]

    def get(self, key):
        """The value, in the client's own buffer."""
        self.send(b"GET", key)
        line, head, got = self.line()
        end = head + int(line[1:]) + 2
        while got < end:
            got += self.receive(got)
        return memoryview(self.buffer)[head : end - 2]


def serve(work):
    """A fresh server, `work` with a client of it, and the server's end."""
    with short_folder() as folder:
        path = f"{folder}/socket"
        server = start(
            ["redis-server", "--port", "0", "--unixsocket", path, "--save", "", "--dir", folder],
            stdout=subprocess.DEVNULL,
        )
        ready(lambda: listening(path), server)
        client = Client(path)
        ready(lambda: client.command(b"PING") == b"+PONG", server)
        work(client)
        stop(server, signal.SIGTERM)


def copies(count):
    """COPY of a value of 4 MiB to another key."""
    value = os.urandom(4 * MIB)

    def work(client):
        client.command(b"SET", b"key", value)
        with clock():
            for _ in range(count):
                check(client.command(b"COPY", b"key", b"other", b"REPLACE") == b":1")
        check(client.get(b"other") == value)

    serve(work)


def set_get(size, count):
    """SET and GET of values, over eight keys."""
    value = os.urandom(size)

    def work(client):
        with clock():
            for number in range(count):
                key = b"key%d" % (number % 8)
                check(client.command(b"SET", key, value) == b"+OK")
                got = client.get(key)
        check(got == value)

    serve(work)


if __name__ == "__main__":
    main({"copy": copies, "1M": partial(set_get, MIB), "4M": partial(set_get, 4 * MIB)})
