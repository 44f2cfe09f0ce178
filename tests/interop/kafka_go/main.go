// Drives a broker with kafka-go. It prints its observations as one JSON object per line; the Python test checks them,
// and restarts the broker on request. The first error ends the program with code 1.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
)

const (
	partitions = 4
	each       = 10 // records per codec and partition
)

type fields map[string]any

var (
	bootstrap, topic, group string
	client                  *kafka.Client
)

func say(step string, what fields) {
	what["step"] = step
	line, err := json.Marshal(what)
	must("json", err)
	fmt.Println(string(line))
}

func must(what string, err error) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", what, err)
		os.Exit(1)
	}
}

func until(what string, probe func() bool) {
	for end := time.Now().Add(40 * time.Second); !probe(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			must(what, errors.New("not within 40 s"))
		}
	}
}

func main() {
	bootstrap, topic, group = os.Args[1], os.Args[2], os.Args[3]
	client = &kafka.Client{Addr: kafka.TCP(bootstrap), Timeout: 10 * time.Second}
	ctx := context.Background()
	topics(ctx)
	produce(ctx, "none", 0)
	produce(ctx, "gzip", kafka.Gzip)
	produce(ctx, "snappy", kafka.Snappy)
	produce(ctx, "lz4", kafka.Lz4)
	produce(ctx, "zstd", kafka.Zstd)
	groupOfTwo(ctx, 5*each*partitions)
	seek(ctx)
	ending(ctx)
	say("done", fields{})
}

func topics(ctx context.Context) {
	request := &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{{Topic: topic, NumPartitions: partitions,
		ReplicationFactor: 1, ConfigEntries: []kafka.ConfigEntry{{ConfigName: "retention.ms", ConfigValue: "7200000"}}}}}
	made, err := client.CreateTopics(ctx, request)
	must("create", err)
	must("created", made.Errors[topic])
	again, err := client.CreateTopics(ctx, request)
	must("create again", err)
	cluster, err := client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{topic}})
	must("metadata", err)
	found, err := client.DescribeConfigs(ctx, &kafka.DescribeConfigsRequest{Resources: []kafka.DescribeConfigRequestResource{
		{ResourceType: kafka.ResourceTypeTopic, ResourceName: topic, ConfigNames: []string{"retention.ms"}},
		{ResourceType: kafka.ResourceTypeBroker, ResourceName: strconv.Itoa(cluster.Brokers[0].ID),
			ConfigNames: []string{"num.partitions"}},
	}})
	must("describe configs", err)
	settings := []string{}
	for _, resource := range found.Resources {
		must("settings of "+resource.ResourceName, resource.Error)
		for _, entry := range resource.ConfigEntries {
			settings = append(settings, entry.ConfigValue)
		}
	}
	say("topics", fields{"created": true, "again": !errors.Is(again.Errors[topic], kafka.TopicAlreadyExists),
		"brokers": len(cluster.Brokers), "settings": settings})
}

func produce(ctx context.Context, name string, codec kafka.Compression) {
	writer := &kafka.Writer{Addr: kafka.TCP(bootstrap), Topic: topic, RequiredAcks: kafka.RequireAll, Compression: codec,
		BatchSize: each, MaxAttempts: 50, Balancer: kafka.BalancerFunc(func(message kafka.Message, _ ...int) int {
			partition, err := strconv.Atoi(string(message.Key))
			must("partition", err)
			return partition
		})}
	messages := []kafka.Message{}
	for number := range each * partitions {
		messages = append(messages, kafka.Message{Key: []byte(strconv.Itoa(number % partitions)),
			Value:   []byte(fmt.Sprintf("%s-%d", name, number)),
			Headers: []kafka.Header{{Key: "n", Value: []byte(strconv.Itoa(number))}}})
	}
	must("produce "+name, writer.WriteMessages(ctx, messages...))
	must("close the writer", writer.Close())
	asked := []kafka.OffsetRequest{}
	for partition := range partitions {
		asked = append(asked, kafka.LastOffsetOf(partition))
	}
	found, err := client.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{topic: asked}})
	must("ends", err)
	ends := make([]int64, partitions)
	for _, one := range found.Topics[topic] {
		must("end", one.Error)
		ends[one.Partition] = one.LastOffset
	}
	say("produced", fields{"codec": name, "ends": ends})
}

type member struct {
	sync.Mutex
	reader *kafka.Reader
	read   map[string]int
	last   map[int]kafka.Message
	stop   context.CancelFunc
}

func join() *member {
	ctx, stop := context.WithCancel(context.Background())
	made := &member{read: map[string]int{}, last: map[int]kafka.Message{}, stop: stop}
	made.reader = kafka.NewReader(kafka.ReaderConfig{Brokers: []string{bootstrap}, GroupID: group, Topic: topic,
		StartOffset: kafka.FirstOffset, HeartbeatInterval: 300 * time.Millisecond, SessionTimeout: 10 * time.Second,
		RebalanceTimeout: 4 * time.Second, JoinGroupBackoff: 200 * time.Millisecond, MaxWait: 200 * time.Millisecond,
		ReadBackoffMin: 50 * time.Millisecond, ReadBackoffMax: 200 * time.Millisecond, MaxAttempts: 100})
	go func() {
		for {
			message, err := made.reader.FetchMessage(ctx)
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				time.Sleep(100 * time.Millisecond)
				continue
			}
			_, number, _ := strings.Cut(string(message.Value), "-")
			if string(message.Headers[0].Value) != number {
				must("header", fmt.Errorf("of %s", message.Value))
			}
			made.Lock()
			made.read[fmt.Sprintf("%d@%d", message.Partition, message.Offset)]++
			made.last[message.Partition] = message
			made.Unlock()
		}
	}()
	return made
}

// Commits the records since the last commit.
func (m *member) commit(ctx context.Context) {
	m.Lock()
	messages := []kafka.Message{}
	for _, message := range m.last {
		messages = append(messages, message)
	}
	clear(m.last)
	m.Unlock()
	if len(messages) > 0 {
		must("commit", m.reader.CommitMessages(ctx, messages...))
	}
}

// All records that the members have read, and how many of them were read twice although they were committed: below
// this offset.
func seen(below int, members ...*member) (read, twice int) {
	times := map[string]int{}
	for _, one := range members {
		one.Lock()
		for at, n := range one.read {
			times[at] += n
		}
		one.Unlock()
	}
	for at, n := range times {
		_, text, _ := strings.Cut(at, "@")
		offset, err := strconv.Atoi(text)
		must("offset", err)
		if n > 1 && offset < below {
			twice++
		}
	}
	return len(times), twice
}

func committed(ctx context.Context) []int64 {
	found, err := client.OffsetFetch(ctx, &kafka.OffsetFetchRequest{GroupID: group,
		Topics: map[string][]int{topic: {0, 1, 2, 3}}})
	must("offsets", err)
	must("offsets of the group", found.Error)
	at := make([]int64, partitions)
	for _, one := range found.Topics[topic] {
		must("offset", one.Error)
		at[one.Partition] = one.CommittedOffset
	}
	return at
}

// The group's state and the partitions of each member, from the coordinator: the reader itself does not show them.
func described(ctx context.Context) (string, [][]int) {
	found, err := client.DescribeGroups(ctx, &kafka.DescribeGroupsRequest{GroupIDs: []string{group}})
	must("describe", err)
	must("described", found.Groups[0].Error)
	owned := [][]int{}
	for _, one := range found.Groups[0].Members {
		mine := []int{}
		for _, assigned := range one.MemberAssignments.Topics {
			mine = append(mine, assigned.Partitions...)
		}
		owned = append(owned, slices.Sorted(slices.Values(mine)))
	}
	return found.Groups[0].GroupState, owned
}

func groupOfTwo(ctx context.Context, count int) {
	one := join()
	until("one has read it all", func() bool { read, _ := seen(0, one); return read == count })
	one.commit(ctx)
	read, twice := seen(count/partitions, one)
	_, owned := described(ctx)
	say("alone", fields{"owned": owned[0], "read": read, "twice": twice, "committed": committed(ctx)})
	two := join()
	state := ""
	until("two partitions each", func() bool {
		state, owned = described(ctx)
		return state == "Stable" && len(owned) == 2 && len(owned[0]) == 2 && len(owned[1]) == 2
	})
	refused, err := client.DeleteGroups(ctx, &kafka.DeleteGroupsRequest{GroupIDs: []string{group}})
	must("delete a group with members", err)
	say("together", fields{"owned": slices.Sorted(slices.Values(slices.Concat(owned...))), "state": state,
		"members": len(owned), "refused": errors.Is(refused.Errors[group], kafka.NonEmptyGroup)})
	say("restart", fields{})
	_, err = bufio.NewReader(os.Stdin).ReadString('\n')
	must("stdin", err)
	// The earlier connections are closed.
	client = &kafka.Client{Addr: kafka.TCP(bootstrap), Timeout: 10 * time.Second, Transport: &kafka.Transport{}}
	produce(ctx, "after", kafka.Gzip)
	count += each * partitions
	until("what came after the restart", func() bool { read, _ := seen(0, one, two); return read == count })
	one.commit(ctx)
	two.commit(ctx)
	read, twice = seen(count/partitions-each, one, two)
	say("continued", fields{"read": read, "twice": twice, "committed": committed(ctx)})
	for _, member := range []*member{one, two} {
		member.stop()
		must("leave", member.reader.Close())
	}
}

func seek(ctx context.Context) {
	reader := kafka.NewReader(kafka.ReaderConfig{Brokers: []string{bootstrap}, Topic: topic, Partition: 1,
		MaxWait: 200 * time.Millisecond})
	must("seek", reader.SetOffset(17))
	first, err := reader.FetchMessage(ctx)
	must("read", err)
	count := 1
	for last := first; last.Offset+1 < last.HighWaterMark; count++ {
		last, err = reader.FetchMessage(ctx)
		must("read", err)
	}
	must("close", reader.Close())
	say("seek", fields{"first": []int64{int64(first.Partition), first.Offset}, "count": count})
}

func ending(ctx context.Context) {
	offsets := []kafka.OffsetCommit{}
	for partition := range partitions {
		offsets = append(offsets, kafka.OffsetCommit{Partition: partition, Offset: 0})
	}
	reset, err := client.OffsetCommit(ctx, &kafka.OffsetCommitRequest{GroupID: group, GenerationID: -1,
		Topics: map[string][]kafka.OffsetCommit{topic: offsets}})
	must("reset", err)
	for _, one := range reset.Topics[topic] {
		must("reset of a partition", one.Error)
	}
	say("reset", fields{"committed": committed(ctx)})
	deleted, err := client.DeleteGroups(ctx, &kafka.DeleteGroupsRequest{GroupIDs: []string{group}})
	must("delete group", err)
	must("deleted group", deleted.Errors[group])
	listed, err := client.ListGroups(ctx, &kafka.ListGroupsRequest{})
	must("list groups", err)
	must("listed groups", listed.Error)
	left := []string{}
	for _, one := range listed.Groups {
		if strings.HasPrefix(one.GroupID, group) {
			left = append(left, one.GroupID)
		}
	}
	acls := "listed"
	found, err := client.DescribeACLs(ctx, &kafka.DescribeACLsRequest{Filter: kafka.ACLFilter{
		ResourceTypeFilter: kafka.ResourceTypeAny, ResourcePatternTypeFilter: kafka.PatternTypeAny,
		Operation: kafka.ACLOperationTypeAny, PermissionType: kafka.ACLPermissionTypeAny}})
	if err == nil {
		err = found.Error
	}
	if err != nil {
		acls = err.Error()
		if errors.Is(err, kafka.SecurityDisabled) {
			acls = "SECURITY_DISABLED"
		}
	}
	fresh := &kafka.Client{Addr: kafka.TCP(bootstrap), Transport: &kafka.Transport{}}
	gone, err := fresh.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{topic}})
	must("delete topic", err)
	must("deleted topic", gone.Errors[topic])
	until("the topic is gone", func() bool {
		cluster, err := fresh.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{topic}})
		must("metadata", err)
		return errors.Is(cluster.Topics[0].Error, kafka.UnknownTopicOrPartition)
	})
	say("ending", fields{"left": left, "acls": acls})
}
