// Drives a broker with franz-go: produces, consumes in a group, commits, administrates. It prints its observations as
// one JSON object per line, and the Python test checks them. The first error ends it with code 1.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sort"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	partitions = 4
	perCodec   = 50
)

type fields map[string]any

var output sync.Mutex

func say(step string, what fields) {
	what["step"] = step
	line, err := json.Marshal(what)
	must("json", err)
	output.Lock()
	defer output.Unlock()
	fmt.Println(string(line))
}

func must(what string, err error) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", what, err)
		os.Exit(1)
	}
}

func client(bootstrap string, options ...kgo.Opt) *kgo.Client {
	options = append(options, kgo.SeedBrokers(bootstrap), kgo.ClientID("franz"),
		kgo.FetchMaxWait(200*time.Millisecond), kgo.MetadataMinAge(100*time.Millisecond))
	made, err := kgo.NewClient(options...)
	must("client", err)
	return made
}

func main() {
	bootstrap, topic, group := os.Args[1], os.Args[2], os.Args[3]
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	admin := kadm.NewClient(client(bootstrap))
	defer admin.Close()

	topics(ctx, admin, topic)
	produce(ctx, bootstrap, topic)
	offsets(ctx, admin, topic)
	sessions(ctx, bootstrap, topic)
	consumeTogether(ctx, bootstrap, admin, topic, group)
	commits(ctx, bootstrap, admin, topic, group)
	regroup(ctx, bootstrap, topic, group)
	ending(ctx, admin, topic, group)
	say("done", fields{})
}

func topics(ctx context.Context, admin *kadm.Client, topic string) {
	retention := "7200000"
	made, err := admin.CreateTopic(ctx, partitions, 1, map[string]*string{"retention.ms": &retention}, topic)
	must("create", err)
	_, again := admin.CreateTopic(ctx, partitions, 1, nil, topic)
	listed, err := admin.ListTopics(ctx, topic)
	must("list topics", err)
	detail := listed[topic]
	configs, err := admin.DescribeTopicConfigs(ctx, topic)
	must("describe configs", err)
	var kept string
	for _, config := range configs[0].Configs {
		if config.Key == "retention.ms" {
			kept = config.MaybeValue()
		}
	}
	said := fields{
		"created_id": made.ID.String(), "listed_id": detail.ID.String(), "partitions": len(detail.Partitions),
		"again": errors.Is(again, kerr.TopicAlreadyExists), "retention": kept, "internal": detail.IsInternal,
	}
	brokers, err := admin.ListBrokers(ctx)
	must("brokers", err)
	said["brokers"] = len(brokers)
	say("topics", said)
}

// One producer per codec; each is idempotent, which is franz-go's default.
func produce(ctx context.Context, bootstrap, topic string) {
	codecs := []struct {
		name  string
		codec kgo.CompressionCodec
	}{
		{"none", kgo.NoCompression()}, {"gzip", kgo.GzipCompression()}, {"snappy", kgo.SnappyCompression()},
		{"lz4", kgo.Lz4Compression()}, {"zstd", kgo.ZstdCompression()},
	}
	for number, each := range codecs {
		producer := client(bootstrap, kgo.ProducerBatchCompression(each.codec), kgo.DefaultProduceTopic(topic),
			kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(5*time.Millisecond))
		var records []*kgo.Record
		for n := 0; n < perCodec; n++ {
			records = append(records, &kgo.Record{
				Key: []byte(each.name), Value: []byte(fmt.Sprintf("%s-%d", each.name, n)),
				Partition: int32(n % partitions), Timestamp: time.UnixMilli(1_700_000_000_000 + int64(number*perCodec+n)),
				Headers: []kgo.RecordHeader{{Key: "n", Value: []byte{byte(n)}}},
			})
		}
		results := producer.ProduceSync(ctx, records...)
		must("produce "+each.name, results.FirstErr())
		id, epoch, err := producer.ProducerID(ctx)
		must("producer id", err)
		last := map[int32]int64{}
		for _, record := range records {
			last[record.Partition] = record.Offset
		}
		say("produced", fields{"codec": each.name, "producer": id, "epoch": epoch, "last": last})
		producer.Close()
	}
}

func flat(listed kadm.ListedOffsets, topic string) []int64 {
	out := make([]int64, partitions)
	for partition, found := range listed[topic] {
		must("listed offset", found.Err)
		out[partition] = found.Offset
	}
	return out
}

func offsets(ctx context.Context, admin *kadm.Client, topic string) {
	start, err := admin.ListStartOffsets(ctx, topic)
	must("start offsets", err)
	end, err := admin.ListEndOffsets(ctx, topic)
	must("end offsets", err)
	// Records 100 to 149 have the codec snappy. The first record of this time is inside a compressed batch.
	middle, err := admin.ListOffsetsAfterMilli(ctx, 1_700_000_000_000+120, topic)
	must("offsets by time", err)
	newest, err := admin.ListMaxTimestampOffsets(ctx, topic)
	must("newest", err)
	late, err := admin.ListOffsetsAfterMilli(ctx, 1_800_000_000_000, topic)
	must("offsets after the end", err)
	var times []int64
	for partition := int32(0); partition < partitions; partition++ {
		times = append(times, newest[topic][partition].Timestamp)
	}
	say("offsets", fields{"start": flat(start, topic), "end": flat(end, topic), "middle": flat(middle, topic),
		"newest": flat(newest, topic), "newest_times": times, "late": flat(late, topic)})
}

// Reads everything twice, with incremental fetch sessions and without; both results must be equal.
func sessions(ctx context.Context, bootstrap, topic string) {
	for _, with := range []bool{true, false} {
		from := map[int32]kgo.Offset{}
		for partition := int32(0); partition < partitions; partition++ {
			from[partition] = kgo.NewOffset().AtStart()
		}
		options := []kgo.Opt{kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}),
			kgo.FetchMaxPartitionBytes(500)}
		if !with {
			options = append(options, kgo.DisableFetchSessions())
		}
		reader := client(bootstrap, options...)
		values, gaps, headers := map[string]int{}, 0, 0
		next := map[int32]int64{}
		for len(values) < 5*perCodec {
			fetched := reader.PollFetches(ctx)
			must("fetch", fetched.Err())
			fetched.EachRecord(func(record *kgo.Record) {
				values[string(record.Value)]++
				if record.Offset != next[record.Partition] {
					gaps++
				}
				next[record.Partition] = record.Offset + 1
				headers += len(record.Headers)
			})
		}
		say("read", fields{"sessions": with, "values": len(values), "gaps": gaps, "headers": headers, "next": next})
		reader.Close()
	}
}

type member struct {
	name   string
	client *kgo.Client
	mutex  sync.Mutex
	owned  map[int32]bool
	read   map[string]int
}

func join(bootstrap, topic, group, name string, options ...kgo.Opt) *member {
	made := &member{name: name, owned: map[int32]bool{}, read: map[string]int{}}
	change := func(value bool) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, changed map[string][]int32) {
			made.mutex.Lock()
			defer made.mutex.Unlock()
			for _, partition := range changed[topic] {
				if value {
					made.owned[partition] = true
				} else {
					delete(made.owned, partition)
				}
			}
		}
	}
	// The records of a partition are committed before another member gets it, so that it continues after them.
	revoked := func(ctx context.Context, client *kgo.Client, changed map[string][]int32) {
		must("commit what is revoked", client.CommitUncommittedOffsets(ctx))
		change(false)(ctx, client, changed)
	}
	options = append(options, kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.SessionTimeout(6*time.Second),
		kgo.HeartbeatInterval(300*time.Millisecond), kgo.OnPartitionsAssigned(change(true)),
		kgo.OnPartitionsRevoked(revoked), kgo.OnPartitionsLost(change(false)))
	made.client = client(bootstrap, options...)
	return made
}

func (m *member) partitions() []int32 {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	out := []int32{}
	for partition := range m.owned {
		out = append(out, partition)
	}
	sort.Slice(out, func(a, b int) bool { return out[a] < out[b] })
	return out
}

func (m *member) poll(ctx context.Context, wait time.Duration) {
	short, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	m.client.PollFetches(short).EachRecord(func(record *kgo.Record) { m.read[string(record.Value)]++ })
}

// Two members share the topic, read all of it, and commit.
func consumeTogether(ctx context.Context, bootstrap string, admin *kadm.Client, topic, group string) {
	one := join(bootstrap, topic, group, "one", kgo.Balancers(kgo.CooperativeStickyBalancer()))
	two := join(bootstrap, topic, group, "two", kgo.Balancers(kgo.CooperativeStickyBalancer()))
	all := map[string]bool{}
	for len(all) < 5*perCodec || len(one.partitions()) != 2 || len(two.partitions()) != 2 {
		must("two members read it all", ctx.Err())
		for _, each := range []*member{one, two} {
			each.poll(ctx, 100*time.Millisecond)
			for value := range each.read {
				all[value] = true
			}
		}
	}
	described, err := admin.DescribeGroups(ctx, group)
	must("describe group", err)
	stable := described[group]
	must("group", stable.Err)
	var hosts []string
	for _, each := range stable.Members {
		hosts = append(hosts, each.ClientHost)
	}
	listed, err := admin.ListGroups(ctx)
	must("list groups", err)
	// The deletion of a group with members is refused.
	deleted, err := admin.DeleteGroups(ctx, group)
	must("delete groups", err)
	for _, each := range []*member{one, two} {
		must("commit", each.client.CommitUncommittedOffsets(ctx))
	}
	lags, err := admin.Lag(ctx, group)
	must("lag", err)
	lag := lags[group]
	must("lag of the group", lag.Error())
	owners := map[string]int{}
	for _, each := range lag.Lag.Sorted() {
		must("lag of a partition", each.Err)
		if each.Member != nil {
			owners[each.Member.MemberID]++
		}
	}
	say("group", fields{"one": one.partitions(), "two": two.partitions(), "read": len(all), "state": stable.State,
		"protocol": stable.Protocol, "members": len(stable.Members), "hosts": hosts,
		"listed": listed[group].State, "refused": errors.Is(deleted[group].Err, kerr.NonEmptyGroup),
		"lag": lag.Lag.Total(), "owners": len(owners)})
	// One member leaves; the other takes over its partitions.
	two.client.Close()
	for len(one.partitions()) != partitions {
		must("one takes over", ctx.Err())
		one.poll(ctx, 100*time.Millisecond)
	}
	say("takeover", fields{"one": one.partitions(), "again": len(one.read)})
	one.client.Close()
}

func committed(ctx context.Context, admin *kadm.Client, topic, group string) (at []int64, notes []string) {
	found, err := admin.FetchOffsets(ctx, group)
	must("fetch offsets", err)
	must("fetched offsets", found.Error())
	at, notes = make([]int64, partitions), make([]string, partitions)
	for partition := int32(0); partition < partitions; partition++ {
		offset, ok := found.Lookup(topic, partition)
		at[partition], notes[partition] = -1, ""
		if ok {
			at[partition], notes[partition] = offset.At, offset.Metadata
		}
	}
	return at, notes
}

// Offsets through the admin client: committed with metadata, lag without members, deleted.
func commits(ctx context.Context, bootstrap string, admin *kadm.Client, topic, group string) {
	before, _ := committed(ctx, admin, topic, group)
	var wanted kadm.Offsets
	for partition := int32(0); partition < partitions; partition++ {
		wanted.Add(kadm.Offset{Topic: topic, Partition: partition, At: int64(10 + partition), LeaderEpoch: 0,
			Metadata: fmt.Sprintf("note %d", partition)})
	}
	must("commit by hand", admin.CommitAllOffsets(ctx, group, wanted))
	after, notes := committed(ctx, admin, topic, group)
	lags, err := admin.Lag(ctx, group)
	must("lag", err)
	lag := lags[group]
	must("lag of the group", lag.Error())
	only := kadm.TopicsSet{}
	only.Add(topic, 3)
	removed, err := admin.DeleteOffsets(ctx, group, only)
	must("delete offsets", err)
	must("deleted offsets", removed.Error())
	left, _ := committed(ctx, admin, topic, group)
	many := admin.FetchManyOffsets(ctx, group, group+"-nobody")
	must("fetch many", many.Error())
	say("commits", fields{"before": before, "after": after, "notes": notes, "lag": lag.Lag.Total(),
		"state": lag.State, "left": left, "groups": len(many)})
}

// A new member, with the older protocol (range), continues at the committed offsets.
func regroup(ctx context.Context, bootstrap, topic, group string) {
	again := join(bootstrap, topic, group, "again", kgo.Balancers(kgo.RangeBalancer()), kgo.InstanceID("static-1"))
	wanted := 5*perCodec - (10 + 11 + 12)
	for len(again.read) < wanted {
		must("a new member goes on", ctx.Err())
		again.poll(ctx, 200*time.Millisecond)
	}
	twice := 0
	for _, times := range again.read {
		if times > 1 {
			twice++
		}
	}
	_, generation := again.client.GroupMetadata()
	say("regroup", fields{"read": len(again.read), "twice": twice, "generation": generation,
		"partitions": again.partitions()})
	again.client.Close()
}

func ending(ctx context.Context, admin *kadm.Client, topic, group string) {
	// A static member stays in its group when it closes; its instance is removed by name.
	left, err := admin.LeaveGroup(ctx, kadm.LeaveGroup(group).InstanceIDs("static-1"))
	must("leave", err)
	must("left", left.Error())
	deleted, err := admin.DeleteGroups(ctx, group)
	must("delete group", err)
	must("deleted group", deleted.Error())
	described, err := admin.DescribeGroups(ctx, group)
	must("describe a dead group", err)
	end, err := admin.ListEndOffsets(ctx, topic)
	must("end offsets", err)
	upTo := kadm.Offsets{}
	upTo.Add(kadm.Offset{Topic: topic, Partition: 0, At: 5})
	cut, err := admin.DeleteRecords(ctx, upTo)
	must("delete records", err)
	must("deleted records", cut.Error())
	start, err := admin.ListStartOffsets(ctx, topic)
	must("start offsets", err)
	grown, err := admin.CreatePartitions(ctx, 2, topic)
	must("create partitions", err)
	must("created partitions", grown.Error())
	listed, err := admin.ListTopics(ctx, topic)
	must("list topics", err)
	removed, err := admin.DeleteTopics(ctx, topic)
	must("delete topics", err)
	must("deleted topics", removed.Error())
	_, again := admin.DeleteTopic(ctx, topic)
	gone, err := admin.ListTopics(ctx, topic)
	must("list topics", err)
	for !errors.Is(gone[topic].Err, kerr.UnknownTopicOrPartition) { // Kafka's metadata follow a moment later
		must("the topic is gone", ctx.Err())
		time.Sleep(50 * time.Millisecond)
		gone, err = admin.ListTopics(ctx, topic)
		must("list topics", err)
	}
	say("ending", fields{"dead": described[group].State, "end": flat(end, topic), "start": flat(start, topic)[0],
		"low": cut[topic][0].LowWatermark, "grown": len(listed[topic].Partitions),
		"again": errors.Is(again, kerr.UnknownTopicOrPartition)})
}
