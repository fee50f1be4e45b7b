// node: buffers of 64 MiB, copied in the three ways that programs use.
'use strict';
const name = process.argv[2];
const count = Number(process.argv[3]);
const MIB = 1 << 20;

const jobs = {
  buffer() {
    const source = Buffer.alloc(64 * MIB);
    for (let at = 0; at < source.length; at += 8) source.writeDoubleLE(at, at);
    const target = Buffer.alloc(source.length);
    const quarters = [0, 1, 2, 3].map((n) => source.subarray(n * 16 * MIB, (n + 1) * 16 * MIB));
    let joined, cloned;
    const start = process.hrtime.bigint();
    for (let turn = 0; turn < count; turn++) {
      source.copy(target);
      joined = Buffer.concat(quarters);
      cloned = Buffer.from(source);
    }
    console.log(`work ${Number(process.hrtime.bigint() - start) / 1e9}`);
    return [target, joined, cloned].every((result) => result.equals(source));
  },
};

if (!jobs[name]()) {
  console.error(`${name}: the result is wrong`);
  process.exit(1);
}
