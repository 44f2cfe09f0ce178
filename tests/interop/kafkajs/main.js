// Drives a broker with kafkajs. It prints its observations as one JSON object per line; the Python test checks them,
// and restarts the broker on request. The first error ends the program with code 1.
"use strict";

const readline = require("readline");
const {
  AclOperationTypes, AclPermissionTypes, AclResourceTypes, CompressionCodecs, CompressionTypes, ConfigResourceTypes,
  Kafka, logLevel, ResourcePatternTypes,
} = require("kafkajs");

const PARTITIONS = 4;
const EACH = 10; // records per codec and partition
const NON_EMPTY_GROUP = 68;
const TYPES = {
  none: CompressionTypes.None, gzip: CompressionTypes.GZIP, snappy: CompressionTypes.Snappy, lz4: CompressionTypes.LZ4,
  zstd: CompressionTypes.ZSTD,
};
const [bootstrap, topic, group, names] = process.argv.slice(2);
const codecs = names.split(",");
const BEFORE = codecs.length * EACH; // records per partition until the restart
const kafka = new Kafka({
  clientId: "kafkajs",
  brokers: [bootstrap],
  logLevel: logLevel.NOTHING,
  retry: { initialRetryTime: 100, maxRetryTime: 500, retries: 60 },
});
const admin = kafka.admin();
const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();

function say(step, what) {
  console.log(JSON.stringify({ step, ...what }));
}

async function until(what, probe) {
  const end = Date.now() + 40_000;
  for (;;) {
    const found = await probe();
    if (found) return found;
    if (Date.now() > end) throw new Error(`not within 40 s: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

async function ends() {
  const found = await admin.fetchTopicOffsets(topic);
  return found.sort((a, b) => a.partition - b.partition).map((one) => Number(one.high));
}

async function committed(resolveOffsets = false) {
  const [found] = await admin.fetchOffsets({ groupId: group, topics: [topic], resolveOffsets });
  return found.partitions.sort((a, b) => a.partition - b.partition).map((one) => Number(one.offset));
}

async function topics() {
  const made = { topic, numPartitions: PARTITIONS, configEntries: [{ name: "retention.ms", value: "7200000" }] };
  const first = await admin.createTopics({ topics: [made] });
  const again = await admin.createTopics({ topics: [made] });
  const cluster = await admin.describeCluster();
  const broker = String(cluster.brokers[0].nodeId);
  const { resources } = await admin.describeConfigs({
    includeSynonyms: false,
    resources: [
      { type: ConfigResourceTypes.TOPIC, name: topic, configNames: ["retention.ms"] },
      { type: ConfigResourceTypes.BROKER, name: broker, configNames: ["num.partitions"] },
    ],
  });
  const settings = resources.map((one) => one.configEntries.map((entry) => entry.configValue).join());
  say("topics", { created: first, again, brokers: cluster.brokers.length, settings });
}

async function produce(name, compression) {
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 });
  await producer.connect();
  const messages = [];
  for (let number = 0; number < EACH * PARTITIONS; number += 1) {
    const partition = number % PARTITIONS;
    messages.push({ partition, key: name, value: `${name}-${number}`, headers: { n: String(number) } });
  }
  await producer.send({ topic, messages, compression, acks: -1 });
  await producer.disconnect();
  say("produced", { codec: name, ends: await ends() });
}

// kafkajs itself has no codec except gzip. The others are packages that are registered with it.
async function register() {
  if (codecs.includes("snappy")) CompressionCodecs[CompressionTypes.Snappy] = require("kafkajs-snappy");
  if (codecs.includes("lz4")) {
    const Lz4 = require("kafkajs-lz4");
    CompressionCodecs[CompressionTypes.LZ4] = new Lz4().codec;
  }
  if (codecs.includes("zstd")) {
    const zstd = await new Promise((resolve) => require("zstd-codec").ZstdCodec.run(resolve));
    const simple = new zstd.Simple();
    CompressionCodecs[CompressionTypes.ZSTD] = () => ({
      compress: async (encoder) => Buffer.from(simple.compress(encoder.buffer, 3)),
      decompress: async (buffer) => Buffer.from(simple.decompress(buffer)),
    });
  }
}

class Member {
  constructor() {
    this.read = new Map();
    this.next = new Map();
    this.owned = [];
    this.consumer = kafka.consumer({
      groupId: group, sessionTimeout: 10_000, rebalanceTimeout: 4_000, heartbeatInterval: 300, maxWaitTimeInMs: 100,
    });
    this.consumer.on(this.consumer.events.GROUP_JOIN, ({ payload }) => {
      this.owned = (payload.memberAssignment[topic] || []).slice().sort();
    });
  }

  async join() {
    await this.consumer.connect();
    await this.consumer.subscribe({ topics: [topic], fromBeginning: true });
    await this.consumer.run({
      autoCommit: false,
      eachMessage: async ({ partition, message }) => {
        const at = `${partition}@${message.offset}`;
        this.read.set(at, (this.read.get(at) || 0) + 1);
        this.next.set(partition, String(Number(message.offset) + 1));
        const number = message.value.toString().split("-")[1];
        if (message.headers.n.toString() !== number) throw new Error(`header of ${message.value}`);
      },
    });
  }

  async commit() {
    const offsets = this.owned.filter((partition) => this.next.has(partition));
    await this.consumer.commitOffsets(
      offsets.map((partition) => ({ topic, partition, offset: this.next.get(partition) })),
    );
  }
}

// All records that the members have read, and how many of them were read twice although they were committed: below
// this offset.
function seen(below, ...members) {
  const times = new Map();
  for (const one of members) for (const [at, n] of one.read) times.set(at, (times.get(at) || 0) + n);
  const twice = [...times].filter(([at, n]) => n > 1 && Number(at.split("@")[1]) < below);
  return { read: times.size, twice: twice.length };
}

async function groupOfTwo() {
  const one = new Member();
  const two = new Member();
  await one.join();
  await until("one has read it all", async () => one.read.size === BEFORE * PARTITIONS);
  await one.commit();
  say("alone", { owned: one.owned, ...seen(BEFORE, one), committed: await committed() });
  await two.join();
  await until("two partitions each", async () => one.owned.length === 2 && two.owned.length === 2);
  const { groups } = await admin.describeGroups([group]);
  const refused = await admin.deleteGroups([group]).catch((error) => error.groups[0].errorCode);
  say("together", {
    owned: [...one.owned, ...two.owned].sort(), state: groups[0].state, members: groups[0].members.length,
    refused: refused === NON_EMPTY_GROUP,
  });
  say("restart", {});
  await lines.next();
  await produce("after", CompressionTypes.GZIP);
  await until("what came after the restart", async () => seen(0, one, two).read === (BEFORE + EACH) * PARTITIONS);
  await one.commit();
  await two.commit();
  say("continued", { ...seen(BEFORE, one, two), committed: await committed() });
  await one.consumer.disconnect();
  await two.consumer.disconnect();
}

async function seek() {
  const consumer = kafka.consumer({ groupId: `${group}-seek`, maxWaitTimeInMs: 100 });
  const offsets = [];
  await consumer.connect();
  await consumer.subscribe({ topics: [topic], fromBeginning: false });
  await consumer.run({
    autoCommit: false,
    eachMessage: async ({ partition, message }) => offsets.push([partition, Number(message.offset)]),
  });
  consumer.seek({ topic, partition: 1, offset: "17" });
  await until("the end after the seek", async () => offsets.length >= BEFORE + EACH - 17);
  await consumer.disconnect();
  say("seek", { first: offsets[0], count: offsets.length });
}

async function ending() {
  await admin.resetOffsets({ groupId: group, topic, earliest: true });
  // kafkajs commits -2, which means the earliest offset.
  say("reset", { committed: await committed(true) });
  await admin.deleteGroups([group, `${group}-seek`]);
  const { groups } = await admin.listGroups();
  const left = groups.map((one) => one.groupId).filter((name) => name.startsWith(group));
  const filter = {
    resourceType: AclResourceTypes.ANY, resourcePatternType: ResourcePatternTypes.ANY,
    operation: AclOperationTypes.ANY, permissionType: AclPermissionTypes.ANY,
  };
  const acls = await kafka.admin({ retry: { retries: 0 } }).describeAcls(filter)
    .then(() => "listed", (error) => error.type || error.name);
  await admin.deleteTopics({ topics: [topic] });
  await until("the topic is gone", async () => !(await admin.listTopics()).includes(topic));
  say("ending", { left, acls });
}

async function main() {
  await register();
  await admin.connect();
  await topics();
  for (const name of codecs) await produce(name, TYPES[name]);
  await groupOfTwo();
  await seek();
  await ending();
  await admin.disconnect();
  say("done", {});
  process.exit(0);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
