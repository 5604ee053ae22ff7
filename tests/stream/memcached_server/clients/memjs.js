// memjs, by the binary protocol; with a user by SASL.
const [port, user, password] = process.argv.slice(2);
const memjs = require("memjs");
const options = user ? { username: user, password } : {};
const c = memjs.Client.create(`127.0.0.1:${port}`, options);
const check = (what, line) => {
  if (!what) {
    console.error(`line ${line} failed`);
    process.exit(1);
  }
};
(async () => {
  check(await c.set("a", "1", { expires: 100 }), 13);
  check((await c.get("a")).value.toString() === "1", 14);
  check((await c.get("none")).value === null, 15);
  check((await c.add("a", "2")) === false, 16);
  check(await c.replace("a", "3"), 17);
  check(await c.append("a", "4"), 18);
  check((await c.get("a")).value.toString() === "34", 19);
  check((await c.increment("n", 3, { initial: 5 })).value === 5, 21);
  check((await c.increment("n", 3, { initial: 5 })).value === 8, 22);
  check((await c.decrement("n", 10, {})).value === 0, 23);
  check(await c.touch("a", 50), 24);
  const large = Buffer.alloc(900000, "y");
  check(await c.set("large", large, {}), 26);
  check((await c.get("large")).value.equals(large), 27);
  check(await c.delete("a"), 28);
  check((await c.get("a")).value === null, 29);
  const stats = await new Promise((done) => c.stats((_e, _s, stats) => done(stats)));
  check(Number(stats.curr_items) === 2, 30);
  await c.flush();
  check((await c.get("n")).value === null, 32);
  c.close();
})().catch((error) => {
  console.error(error);
  process.exit(1);
});
