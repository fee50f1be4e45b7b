"""PostgreSQL under test: string_agg joins strings of 8 MiB. psql is the plain client."""

import glob
import hashlib
import os
import pwd
import signal
import subprocess

from work import CHECK, FOLDER, MIB, check, clock, main, ready, short_folder, skip, start, stop

# PostgreSQL refuses to run as root.
USER = "postgres" if os.getuid() == 0 else None

# Eight strings, each made of large parts: repeat() itself is to cost little.
STRINGS = """(select repeat(repeat(chr(65 + i), 65536), 128) s
 from generate_series(0, 7) i) t"""
QUERY = f"select octet_length(string_agg(s, '')) from {STRINGS}"
DIGEST = f"select md5(string_agg(s, '')) from {STRINGS}"


def programs():
    """The folder of the newest version; Debian keeps several."""
    found = glob.glob("/usr/lib/postgresql/*/bin")
    check(found, "no PostgreSQL in /usr/lib/postgresql")
    return max(found, key=lambda path: float(path.split("/")[4]))


def readable(path):
    """Whether the server's user gets there."""
    return subprocess.run(["test", "-r", path], user=USER, cwd="/").returncode == 0


def cluster(folder):
    """The data directory, made once."""
    data = os.path.join(FOLDER, "postgres")
    for path in FOLDER, os.environ.get("BENCH_PRELOAD", FOLDER):
        if not readable(path):
            skip(f"user {USER or 'of this job'} cannot read {path}")
    if not os.path.exists(os.path.join(data, "PG_VERSION")):
        os.makedirs(data, exist_ok=True)
        if USER:
            subprocess.run(["chown", USER, data], check=True)
        command = [f"{folder}/initdb", "--no-sync", "--auth=trust", "--pgdata", data]
        made = subprocess.run(command, user=USER, cwd="/", capture_output=True, text=True)
        check(made.returncode == 0, made.stderr)
    return data


def string_agg(count):
    folder = programs()
    data = cluster(folder)
    with short_folder() as sockets:
        os.chmod(sockets, 0o777)

        def ask(*queries):
            """Their answers, or None."""
            command = [f"{folder}/psql", "-h", sockets, "-d", "postgres", "-U", owner, "-qAtX"]
            for query in queries:
                command += ["-c", query]
            answer = subprocess.run(command, capture_output=True, text=True)
            return answer.stdout.split() if answer.returncode == 0 else None

        owner = USER or pwd.getpwuid(os.getuid()).pw_name
        settings = ["-k", sockets, "-h", "", "-F", "-c", "autovacuum=off"]
        command = [f"{folder}/postgres", "-D", data, *settings]
        server = start(command, user=USER, cwd="/", stderr=subprocess.DEVNULL)
        ready(lambda: ask("select 1") == ["1"], server)
        with clock():
            answers = ask(*[QUERY] * count)
        check(answers == [str(64 * MIB)] * count)
        if CHECK:
            whole = b"".join(bytes([65 + i]) * (8 * MIB) for i in range(8))
            check(ask(DIGEST) == [hashlib.md5(whole).hexdigest()])
        stop(server, signal.SIGINT)


if __name__ == "__main__":
    main({"string_agg": string_agg})
