// A worker process of the npm package redis-semaphore; arguments, orders and answers are those of worker.py.
"use strict";
const Redis = require("ioredis");
const { Semaphore } = require("redis-semaphore");

const [, url, name, limit, lease, workers] = process.argv.slice(2);
const redis = new Redis(url);
const monotonic = () => Number(process.hrtime.bigint()) / 1e9;
const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));
const say = (answer) => process.stdout.write(JSON.stringify(answer) + "\n");
const semaphore = () =>
  new Semaphore(redis, name, Number(limit), { lockTimeout: lease * 1000, acquireTimeout: Number.MAX_SAFE_INTEGER });

async function work(jobs, hold) {
  const log = [];
  for (let job = 0; job < jobs; job++) {
    const asked = monotonic();
    const slot = semaphore();
    await slot.acquire();
    const got = monotonic();
    await sleep(hold);
    const done = monotonic();
    await slot.release();
    log.push([asked, got, done]);
  }
  return log;
}

async function obey(order) {
  if (order.keep) {
    await semaphore().acquire();
    say({ got: monotonic() });
    return;
  }
  await sleep(order.start - monotonic());
  const before = process.cpuUsage();
  const jobs = await Promise.all(order.shares.map((share) => work(share, order.hold)));
  const { user, system } = process.cpuUsage(before);
  say({ cpu: (user + system) / 1e6, jobs: jobs.flat() });
}

(async () => {
  await Promise.all(Array.from({ length: Number(workers) }, () => work(1, 0)));
  say({ ready: true });
  const lines = require("readline").createInterface({ input: process.stdin });
  lines.on("line", (line) => obey(JSON.parse(line)));
  lines.on("close", () => process.exit(0));
})();
