// Drives a broker with sarama. It prints its observations as one JSON object per line; the Python test checks them,
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

	"github.com/IBM/sarama"
)

const (
	partitions = 4
	each       = 10 // records per codec and partition
)

type fields map[string]any

var bootstrap, topic, group string

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

func settings() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.ClientID = "sarama"
	config.Metadata.Retry.Max = 100
	config.Metadata.Retry.Backoff = 100 * time.Millisecond
	config.Consumer.Return.Errors = false
	config.Consumer.Retry.Backoff = 100 * time.Millisecond
	config.Consumer.Offsets.AutoCommit.Enable = false
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Group.Session.Timeout = 10 * time.Second
	config.Consumer.Group.Heartbeat.Interval = 300 * time.Millisecond
	config.Consumer.Group.Rebalance.Timeout = 4 * time.Second
	config.Consumer.Group.Rebalance.Retry.Max = 100
	config.Consumer.Group.Rebalance.Retry.Backoff = 100 * time.Millisecond
	return config
}

func dial() (sarama.Client, sarama.ClusterAdmin) {
	client, err := sarama.NewClient([]string{bootstrap}, settings())
	must("client", err)
	admin, err := sarama.NewClusterAdminFromClient(client)
	must("admin", err)
	return client, admin
}

func main() {
	bootstrap, topic, group = os.Args[1], os.Args[2], os.Args[3]
	client, admin := dial()
	topics(client, admin)
	produce(client, "none", sarama.CompressionNone)
	produce(client, "gzip", sarama.CompressionGZIP)
	produce(client, "snappy", sarama.CompressionSnappy)
	produce(client, "lz4", sarama.CompressionLZ4)
	produce(client, "zstd", sarama.CompressionZSTD)
	groupOfTwo(client, admin, 5*each*partitions)
	must("close", client.Close())
	client, admin = dial()
	seek(client)
	ending(client, admin)
	say("done", fields{})
}

func topics(client sarama.Client, admin sarama.ClusterAdmin) {
	retention := "7200000"
	made := &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: 1,
		ConfigEntries: map[string]*string{"retention.ms": &retention}}
	must("create", admin.CreateTopic(topic, made, false))
	again := admin.CreateTopic(topic, made, false)
	brokers, _, err := admin.DescribeCluster()
	must("cluster", err)
	said := []string{}
	for _, resource := range []sarama.ConfigResource{
		{Type: sarama.TopicResource, Name: topic, ConfigNames: []string{"retention.ms"}},
		{Type: sarama.BrokerResource, Name: fmt.Sprint(brokers[0].ID()), ConfigNames: []string{"num.partitions"}},
	} {
		entries, err := admin.DescribeConfig(resource)
		must("describe configs", err)
		for _, entry := range entries {
			said = append(said, entry.Value)
		}
	}
	say("topics", fields{"created": true, "again": !errors.Is(again, sarama.ErrTopicAlreadyExists),
		"brokers": len(brokers), "settings": said})
	must("metadata", client.RefreshMetadata(topic))
}

func produce(client sarama.Client, name string, codec sarama.CompressionCodec) {
	config := settings()
	config.Producer.Idempotent = true
	config.Net.MaxOpenRequests = 1
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Retry.Max = 100
	config.Producer.Return.Successes = true
	config.Producer.Compression = codec
	config.Producer.Partitioner = sarama.NewManualPartitioner
	// One batch per partition.
	config.Producer.Flush.Messages = each * partitions
	producer, err := sarama.NewSyncProducer([]string{bootstrap}, config)
	must("producer", err)
	messages := []*sarama.ProducerMessage{}
	for number := range each * partitions {
		messages = append(messages, &sarama.ProducerMessage{Topic: topic, Partition: int32(number % partitions),
			Key: sarama.StringEncoder(name), Value: sarama.StringEncoder(fmt.Sprintf("%s-%d", name, number)),
			Headers: []sarama.RecordHeader{{Key: []byte("n"), Value: []byte(fmt.Sprint(number))}}})
	}
	must("produce "+name, producer.SendMessages(messages))
	must("close the producer", producer.Close())
	ends := []int64{}
	for partition := range int32(partitions) {
		end, err := client.GetOffset(topic, partition, sarama.OffsetNewest)
		must("end", err)
		ends = append(ends, end)
	}
	say("produced", fields{"codec": name, "ends": ends})
}

type member struct {
	sync.Mutex
	client  sarama.ConsumerGroup
	session sarama.ConsumerGroupSession
	owned   []int32
	read    map[string]int
	stop    context.CancelFunc
}

func join() *member {
	made := &member{read: map[string]int{}}
	client, err := sarama.NewConsumerGroup([]string{bootstrap}, group, settings())
	must("consumer group", err)
	ctx, stop := context.WithCancel(context.Background())
	made.client, made.stop = client, stop
	go func() {
		for ctx.Err() == nil {
			// An error (the broker is down) ends one session; the next one joins again.
			if client.Consume(ctx, []string{topic}, made) != nil {
				time.Sleep(100 * time.Millisecond)
			}
		}
	}()
	return made
}

func (m *member) Setup(session sarama.ConsumerGroupSession) error {
	m.Lock()
	defer m.Unlock()
	m.session, m.owned = session, slices.Sorted(slices.Values(session.Claims()[topic]))
	return nil
}

func (m *member) Cleanup(sarama.ConsumerGroupSession) error {
	m.Lock()
	defer m.Unlock()
	m.session, m.owned = nil, nil
	return nil
}

func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case <-session.Context().Done():
			return nil
		case message, ok := <-claim.Messages():
			if !ok {
				return nil
			}
			_, number, _ := strings.Cut(string(message.Value), "-")
			if string(message.Headers[0].Value) != number {
				must("header", fmt.Errorf("of %s", message.Value))
			}
			m.Lock()
			m.read[fmt.Sprintf("%d@%d", message.Partition, message.Offset)]++
			m.Unlock()
			session.MarkMessage(message, "")
		}
	}
}

func (m *member) commit() {
	m.Lock()
	defer m.Unlock()
	if m.session != nil {
		m.session.Commit()
	}
}

func (m *member) owns() []int32 {
	m.Lock()
	defer m.Unlock()
	return slices.Clone(m.owned)
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

func committed(admin sarama.ClusterAdmin) []int64 {
	asked := map[string][]int32{topic: {0, 1, 2, 3}}
	found, err := admin.ListConsumerGroupOffsets(group, asked)
	must("offsets", err)
	at := []int64{}
	for partition := range int32(partitions) {
		at = append(at, found.GetBlock(topic, partition).Offset)
	}
	return at
}

func groupOfTwo(client sarama.Client, admin sarama.ClusterAdmin, count int) {
	one := join()
	until("one has read it all", func() bool { read, _ := seen(0, one); return read == count })
	one.commit()
	read, twice := seen(count/partitions, one)
	say("alone", fields{"owned": one.owns(), "read": read, "twice": twice, "committed": committed(admin)})
	two := join()
	until("two partitions each", func() bool { return len(one.owns()) == 2 && len(two.owns()) == 2 })
	described, err := admin.DescribeConsumerGroups([]string{group})
	must("describe", err)
	refused := admin.DeleteConsumerGroup(group)
	say("together", fields{"owned": slices.Sorted(slices.Values(append(one.owns(), two.owns()...))),
		"state": described[0].State, "members": len(described[0].Members),
		"refused": errors.Is(refused, sarama.ErrNonEmptyGroup)})
	say("restart", fields{})
	_, err = bufio.NewReader(os.Stdin).ReadString('\n')
	must("stdin", err)
	fresh, freshAdmin := dial()
	produce(fresh, "after", sarama.CompressionGZIP)
	count += each * partitions
	until("what came after the restart", func() bool { read, _ := seen(0, one, two); return read == count })
	// A commit on a connection that the restart has closed fails silently, and the next one is sent on a new one.
	until("commits after the restart", func() bool {
		one.commit()
		two.commit()
		return slices.Min(committed(freshAdmin)) == int64(count/partitions)
	})
	read, twice = seen(count/partitions-each, one, two)
	say("continued", fields{"read": read, "twice": twice, "committed": committed(freshAdmin)})
	for _, member := range []*member{one, two} {
		member.stop()
		must("leave", member.client.Close())
	}
	must("close", freshAdmin.Close())
}

func seek(client sarama.Client) {
	consumer, err := sarama.NewConsumerFromClient(client)
	must("consumer", err)
	from, err := consumer.ConsumePartition(topic, 1, 17)
	must("seek", err)
	first, count := (<-from.Messages()).Offset, int64(1)
	for last := first; last+1 < from.HighWaterMarkOffset(); count++ {
		last = (<-from.Messages()).Offset
	}
	must("close", from.Close())
	must("close", consumer.Close())
	say("seek", fields{"first": []int64{1, first}, "count": count})
}

func ending(client sarama.Client, admin sarama.ClusterAdmin) {
	manager, err := sarama.NewOffsetManagerFromClient(group, client)
	must("offset manager", err)
	for partition := range int32(partitions) {
		one, err := manager.ManagePartition(topic, partition)
		must("offsets of a partition", err)
		one.ResetOffset(0, "")
	}
	manager.Commit()
	say("reset", fields{"committed": committed(admin)})
	must("close", manager.Close())
	must("delete group", admin.DeleteConsumerGroup(group))
	groups, err := admin.ListConsumerGroups()
	must("list groups", err)
	left := []string{}
	for name := range groups {
		if strings.HasPrefix(name, group) {
			left = append(left, name)
		}
	}
	acls := "listed"
	if _, err = admin.ListAcls(sarama.AclFilter{Version: 1, ResourceType: sarama.AclResourceAny,
		ResourcePatternTypeFilter: sarama.AclPatternAny, Operation: sarama.AclOperationAny,
		PermissionType: sarama.AclPermissionAny}); err != nil {
		acls = err.Error()
		if errors.Is(err, sarama.ErrSecurityDisabled) {
			acls = "SECURITY_DISABLED"
		}
	}
	_, fresh := dial() // the connection may have been closed
	must("delete topic", fresh.DeleteTopic(topic))
	until("the topic is gone", func() bool {
		listed, err := fresh.ListTopics()
		must("list topics", err)
		_, there := listed[topic]
		return !there
	})
	say("ending", fields{"left": left, "acls": acls})
}
