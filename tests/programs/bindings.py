"""The promises of bindings/python, by tests/bindings.rs in each Python it finds: bindings.py FOLDER.

With LD_PRELOAD, and without; ADMA_STATS is set, so that copies are counted.
"""
import asyncio
import ctypes
import errno
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import unittest

import adma
import adma.aio

FOLDER = sys.argv.pop(1)
LIMIT = 100  # seconds; only turns a hang into a failure
MIB = 1 << 20


def pattern(size):
    return (bytes(range(251)) * (size // 251 + 1))[:size]


def pair(number=[0]):
    """Two ends of one connection, both in this process."""
    number[0] += 1
    with adma.listen(f"{FOLDER}/{os.getpid()}.{number[0]}") as listener:
        clients = []
        path = f"{FOLDER}/{os.getpid()}.{number[0]}"
        thread = threading.Thread(target=lambda: clients.append(adma.connect(path, LIMIT)))
        thread.start()
        server = listener.accept(LIMIT)
        thread.join()
        return server, clients[0]


class Process(unittest.TestCase):
    def test_library_is_loaded_once(self):
        with open("/proc/self/maps") as maps:
            files = {line.split()[-1] for line in maps if "libadma.so" in line}
        self.assertEqual(len(files), 1, files)
        self.assertEqual(files, {os.path.realpath(os.environ["LIBRARY"])})

    def test_copies_are_libcs_in_off_and_only_there(self):
        src, dst = bytes(4 * MIB), bytearray(4 * MIB)

        def counted(times):
            before = adma.stats()
            for _ in range(times):
                adma.copy(src, dst)
            after = adma.stats()
            return after.engine_calls - before.engine_calls, after.libc_calls - before.libc_calls

        # A busy machine leaves some of them to libc.
        if len(os.sched_getaffinity(0)) > 1:
            self.assertTrue(any(counted(20)[0] for _ in range(100)))
        with adma.off():
            with adma.off():
                self.assertEqual(counted(20), (0, 20))
            self.assertEqual(counted(20), (0, 20))
            adma.icopy(src, dst).wait()
        self.assertEqual(adma._library.lib.adma_on(), -errno.EINVAL)
        if len(os.sched_getaffinity(0)) > 1:
            self.assertTrue(any(counted(20)[0] for _ in range(100)))

    def test_memory_of_alloc_lives_as_long_as_a_view_of_it(self):
        def files():
            # Not all descriptors: the thread that served connections of earlier tests closes its own some time.
            found = 0
            for name in os.listdir("/proc/self/fd"):
                try:
                    found += "memfd:" in os.readlink(f"/proc/self/fd/{name}")
                except FileNotFoundError:
                    pass  # the list's own
            return found

        before = files()
        block = adma.alloc(MIB)
        self.assertEqual((len(block), block.format, bytes(block[:9])), (MIB, "B", bytes(9)))
        self.assertEqual(files(), before + 1)
        part = block[MIB - 4:]
        del block
        gc.collect()
        part[:] = b"tail"
        self.assertEqual(files(), before + 1)
        del part
        gc.collect()
        self.assertEqual(files(), before)
        self.assertEqual(len(adma.alloc(0)), 0)
        self.assertRaises(ValueError, adma.alloc, -1)


class Copies(unittest.TestCase):
    def test_all_bytes_are_copied_between_all_kinds_of_buffers(self):
        for size in (0, 1, 5000, 300_001, 8 * MIB):
            data, block = pattern(size), adma.alloc(size)
            for src, dst in ((data, bytearray(size)), (memoryview(data), block), (block, bytearray(size))):
                adma.copy(src, dst)
                self.assertEqual(dst, data)
                dst[:] = bytes(size)
                block[:] = data
                copy = adma.icopy(src, dst)
                self.assertEqual((copy.wait(), copy.wait(LIMIT), copy.done()), (0, 0, True))
                self.assertEqual(dst, data)

    def test_what_is_no_buffer_to_copy_into_is_refused(self):
        for call in (adma.copy, adma.icopy):
            self.assertRaises(ValueError, call, bytes(5), bytearray(4))
            self.assertRaises(BufferError, call, bytes(5), bytes(5))
            self.assertRaises(BufferError, call, memoryview(bytes(10))[::2], bytearray(5))
            self.assertRaises(TypeError, call, "text", bytearray(4))

    def test_numpy_arrays_are_buffers(self):
        try:
            import numpy
        except ImportError:
            return print("without numpy")
        src = numpy.arange(1 << 18, dtype=numpy.float64).reshape(512, 512)
        dst = numpy.zeros_like(src)
        adma.copy(src, dst)
        self.assertTrue((src == dst).all())
        dst[:] = 0
        adma.icopy(src, dst).wait()
        self.assertTrue((src == dst).all())
        with self.assertRaises((BufferError, ValueError)):
            adma.copy(src[:, ::2], dst[:, ::2])
        array = numpy.frombuffer(adma.alloc(8 * MIB))
        array[:] = 1.0
        gc.collect()
        self.assertEqual(array.sum(), MIB)

    def test_destination_is_held_until_the_end_was_told_or_the_request_dropped(self):
        for end in (lambda copy: copy.wait(), lambda copy: copy.cancel(), lambda copy: None):
            dst = bytearray(MIB)
            copy = adma.icopy(bytes(MIB), dst)
            with self.assertRaises(BufferError):
                dst.clear()
            end(copy)
            del copy
            dst.clear()

    def test_copies_can_be_awaited(self):
        async def main():
            data = pattern(2 * MIB)
            results = [bytearray(2 * MIB) for _ in range(20)]
            self.assertEqual(await adma.icopy(data, results[0]), 0)
            await asyncio.gather(*(adma.icopy(data, dst) for dst in results))
            self.assertTrue(all(dst == data for dst in results))

        asyncio.run(main())


class Messages(unittest.TestCase):
    def setUp(self):
        self.server, self.client = pair()

    def tearDown(self):
        self.server.close()
        self.client.close()

    def test_messages_of_every_size_arrive_whole_and_empty_ones_too(self):
        for size in (0, 1, 5000, 32768, 32769, 8 * MIB):
            data, buffer = pattern(size), bytearray(size)
            read = self.server.iread_into(buffer)
            self.assertEqual(self.client.write(data, LIMIT), size)
            self.assertEqual((read.wait(LIMIT), buffer == data), (size, True))
            written = self.server.iwrite(data)
            self.assertEqual(self.client.read(LIMIT), data)
            self.assertEqual(written.wait(LIMIT), size)
        self.assertEqual(self.client.peer.pid, os.getpid())
        self.assertIn(",", self.client.info)

    def test_errors_are_the_exceptions_that_python_has_for_them(self):
        self.assertRaises(TimeoutError, self.client.read_into, bytearray(5), 0)
        self.assertRaises(TimeoutError, self.client.read, 0)
        self.assertRaises(TimeoutError, self.client.write, bytes(MIB), 0)
        self.assertRaises(BufferError, self.client.read_into, bytes(5))
        self.client.write(b"four")
        with self.assertRaises(OSError) as caught:
            self.server.read_into(bytearray(3))
        self.assertEqual(caught.exception.errno, errno.EMSGSIZE)
        self.assertEqual(self.server.next(), 4)
        self.assertEqual(self.server.read(), b"four")
        self.assertIsNone(self.server.next())
        self.client.close()
        self.assertRaises(BrokenPipeError, self.server.read)
        with self.assertRaises(OSError) as caught:
            self.client.write(b"")
        self.assertEqual(caught.exception.errno, errno.EBADF)
        self.assertRaises(FileNotFoundError, adma.connect, f"{FOLDER}/nothing")

    def test_many_unread_messages_wait_for_room(self):
        got = []

        def read():
            got.extend(bytes(self.server.read(LIMIT)) for _ in range(1001))

        reader = threading.Thread(target=read)
        for number in range(200):
            self.client.write(b"%d" % number, LIMIT)
        reader.start()
        for number in range(200, 1000):
            self.client.write(b"%d" % number, LIMIT)
        self.client.write(pattern(MIB), LIMIT)
        reader.join()
        self.assertEqual(got, [b"%d" % number for number in range(1000)] + [pattern(MIB)])

    def test_read_waits_for_the_end_of_the_256th_before_it(self):
        held = self.server.iread_into(bytearray(9))
        for _ in range(256):
            self.client.write(b"more", LIMIT)
        for _ in range(255):
            self.assertEqual(self.server.read(LIMIT), b"more")
        self.assertRaises(BlockingIOError, self.server.iread_into, bytearray(9))
        self.assertRaises(TimeoutError, self.server.read_into, bytearray(9), 0.01)
        timer = threading.Timer(0.01, held.wait)
        timer.start()
        self.client.write(b"the last")
        self.assertEqual(self.server.read_into(bytearray(9), LIMIT), 8)
        timer.join()

    def test_buffer_of_a_dropped_request_is_not_written(self):
        for size in (1000, MIB):
            held = bytearray(size)
            request = self.server.iread_into(held)
            self.assertRaises(BufferError, held.clear)
            del request
            view = memoryview(held)  # stands for whatever has that memory next
            written = self.client.iwrite(pattern(size))
            self.assertEqual(self.server.read(LIMIT), pattern(size))
            self.assertEqual(written.wait(LIMIT), size)
            self.assertEqual(bytes(view), bytes(size))

    def test_memory_is_held_by_a_request_alone(self):
        for size in (1000, MIB):
            request = self.server.iread_into(bytearray(size))
            gc.collect()
            others = [bytearray(size) for _ in range(20)]
            self.client.write(pattern(size), LIMIT)
            self.assertEqual(request.wait(LIMIT), size)
            self.assertTrue(all(other == bytes(size) for other in others))

    def test_closing_ends_requests_and_frees_their_memory(self):
        buffer = bytearray(MIB)
        request = self.server.iread_into(buffer)
        self.server.close()
        self.assertRaises(OSError, request.wait, LIMIT)
        buffer.clear()

    def test_withdrawn_read_leaves_no_trace(self):
        request = self.server.iread_into(bytearray(10))
        self.assertFalse(request.done())
        self.assertTrue(request.cancel())
        self.client.write(b"next")
        self.assertEqual(self.server.read(LIMIT), b"next")

    def test_handler_that_raises_leaves_a_request_that_can_be_cancelled(self):
        class Raised(Exception):
            pass

        raises = False  # once in each call: on a busy machine more signals come than one

        def handler(*_):
            nonlocal raises
            if raises:
                raises = False
                raise Raised

        before = signal.signal(signal.SIGUSR1, handler)
        self.addCleanup(signal.signal, signal.SIGUSR1, before)

        def interrupted(call):
            over = threading.Event()

            def interrupt():
                time.sleep(0.02)
                while not over.is_set():
                    os.kill(os.getpid(), signal.SIGUSR1)
                    time.sleep(0.2)  # one is enough, once the call has begun

            def called():
                nonlocal raises
                raises = True
                call()

            thread = threading.Thread(target=interrupt)
            thread.start()
            try:
                self.assertRaises(Raised, called)
            finally:
                over.set()
                thread.join()

        for turn in range(3):
            request = self.server.iread_into(bytearray(10))
            interrupted(request.wait)
            self.assertTrue(request.cancel())
            interrupted(lambda: self.server.read_into(bytearray(10)))
            self.client.write(b"first")
            self.client.write(b"second")
            self.assertEqual((self.server.read(LIMIT), self.server.read(LIMIT)), (b"first", b"second"))

    def test_copied_is_never_more_than_the_length(self):
        copy = adma.icopy(pattern(8 * MIB), bytearray(8 * MIB))
        while copy.copied() < 8 * MIB:
            self.assertLessEqual(copy.copied(), 8 * MIB)
        self.assertEqual((copy.copied(), copy.wait(), copy.copied()), (8 * MIB, 0, 8 * MIB))
        request = self.server.iread_into(bytearray(MIB))
        self.assertEqual(request.copied(), 0)
        self.client.write(pattern(5000))
        self.assertEqual((request.wait(LIMIT), request.copied()), (5000, 5000))

    def test_close_by_two_threads_closes_once(self):
        for _ in range(20):
            one, two = pair()
            failed = []

            def close():
                try:
                    one.close()
                except BaseException as error:
                    failed.append(error)

            threads = [threading.Thread(target=close) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            two.close()
            self.assertEqual(failed, [])

    def test_control_c_ends_waiting(self):
        calls = {
            "read_into": "c.read_into(bytearray(5))",
            "read": "c.read()",
            "write": "c.write(bytes(1 << 20))",
            "wait": "c.iread_into(bytearray(5)).wait()",
            "accept": "adma.listen(sys.argv[1] + '.2').accept()",
            # A listener that nothing accepts from.
            "connect": "l = adma.listen(sys.argv[1] + '.3'); adma.connect(sys.argv[1] + '.3', 3600)",
        }
        for name, call in calls.items():
            path = f"{FOLDER}/{os.getpid()}.{name}"
            source = (
                "import sys, adma\n"
                "c = adma.connect(sys.argv[1], 60)\n"
                "try:\n"
                "    print('now', flush=True)\n"
                f"    {call}\n"
                "except KeyboardInterrupt: sys.exit(7)\n"
            )
            with adma.listen(path) as listener:
                child = subprocess.Popen([sys.executable, "-c", source, path], stdout=subprocess.PIPE)
                connection = listener.accept(LIMIT)
                self.assertEqual(child.stdout.readline(), b"now\n")
                time.sleep(0.02)  # it may not be inside of the call yet, and ends either way
                child.send_signal(signal.SIGINT)
                self.assertEqual(child.wait(LIMIT), 7, name)
                child.stdout.close()
                connection.close()

    def test_exit_with_requests_under_way_is_quiet(self):
        source = (
            "import adma, socket, threading\n"
            "a, b = socket.socketpair()\n"
            "t = threading.Thread(target=lambda: globals().update(c=adma.attach(a)))\n"
            "t.start(); d = adma.attach(b); t.join()\n"
            "kept = [d.iread_into(bytearray(1 << 20)), adma.icopy(bytes(8 << 20), bytearray(8 << 20))]\n"
            "w = c.iwrite(bytes(100))\n"
        )
        done = subprocess.run([sys.executable, "-c", source], capture_output=True, timeout=LIMIT)
        self.assertEqual((done.returncode, done.stderr), (0, b""))


class EventLoop(unittest.TestCase):
    def run_with_pair(self, main):
        path = f"{FOLDER}/{os.getpid()}.{self.id()}"[:100]

        async def run():
            with adma.aio.listen(path) as listener:
                client = asyncio.ensure_future(adma.aio.connect(path, LIMIT))
                async with await listener.accept() as server, await client as client:
                    await asyncio.wait_for(main(server, client), LIMIT)

        asyncio.run(run())
        os.unlink(path)

    def test_messages_go_both_ways_at_once(self):
        async def echo(connection):
            for _ in range(len(sizes)):
                await connection.write(await connection.read())

        sizes = [0, 1, 5000, 100_000, 8 * MIB] * 3

        async def main(server, client):
            serving = asyncio.ensure_future(echo(server))
            for size in sizes:
                buffer = adma.alloc(size)
                reading = asyncio.ensure_future(client.read_into(buffer))
                self.assertEqual(await client.write(pattern(size)), size)
                self.assertEqual((await reading, buffer == pattern(size)), (size, True))
            await serving

        self.run_with_pair(main)

    def test_news_of_one_task_is_not_lost_to_another(self):
        async def main(server, client):
            for number in range(200):
                buffer = bytearray(10)
                reading = asyncio.ensure_future(client.read_into(buffer))
                await asyncio.sleep(0)
                await server.write(b"%d" % number)  # while `reading` waits for its descriptor
                client.arm()  # as another task does
                other = asyncio.ensure_future(client.write(b"x"))
                await asyncio.sleep(0)
                waiting = client.iread_into(bytearray(1))
                withdrawn = asyncio.ensure_future(adma.aio.finish(waiting))
                await asyncio.sleep(0)
                withdrawn.cancel()
                await other
                self.assertEqual(await reading, len(str(number)))
                waiting.cancel()
                await server.read()

        self.run_with_pair(main)

    def test_every_client_is_accepted(self):
        async def main():
            path = f"{FOLDER}/{os.getpid()}.clients"
            with adma.aio.listen(path) as listener:
                for _ in range(100):
                    client = asyncio.ensure_future(adma.aio.connect(path, LIMIT))
                    async with await listener.accept(), await client:
                        pass

        asyncio.run(main())

    def test_write_ends_while_a_message_waits_to_be_read(self):
        async def main(server, client):
            await server.write(b"unread")
            written = asyncio.ensure_future(client.write(pattern(MIB)))
            used = time.process_time()
            await asyncio.sleep(0.5)
            self.assertLess(time.process_time() - used, 0.4)  # it does not spin
            self.assertEqual(await server.read(), pattern(MIB))
            self.assertEqual(await written, MIB)
            self.assertEqual(await client.read(), b"unread")

        self.run_with_pair(main)

    def test_cancelled_read_leaves_its_buffer_and_the_next_message(self):
        async def main(server, client):
            buffer = bytearray(10)
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(server.read_into(buffer), 0.05)
            buffer.clear()
            await client.write(b"next")
            self.assertEqual(await server.read(), b"next")

        self.run_with_pair(main)

    def test_end_of_the_other_side_and_own_close_end_a_read(self):
        async def main(server, client):
            reading = [asyncio.ensure_future(call()) for call in (server.read, client.read)]
            await asyncio.sleep(0)
            client.close()
            errors = await asyncio.gather(*reading, return_exceptions=True)
            self.assertIsInstance(errors[0], BrokenPipeError)
            self.assertEqual(errors[1].errno, errno.EBADF)

        self.run_with_pair(main)


if __name__ == "__main__":
    unittest.main()
