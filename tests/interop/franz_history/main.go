// One client of a history: franz_history ROLE BOOTSTRAP TOPIC PARTITIONS NAME [GROUP PROTOCOL].
// ROLE is producer, member or transactor. It works until its standard input ends, and prints each of its operations as
// a line of docs/checker.md. Times are those of this machine's clock. A further line {"error": …} says what failed.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	pause   = 20 * time.Millisecond
	expires = 180 * time.Second
	waiting = 20
)

type fields map[string]any

var (
	output sync.Mutex
	topic  = os.Args[3]
	name   = os.Args[5]
	count  = must(strconv.Atoi(os.Args[4]))
)

func must[T any](value T, err error) T {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return value
}

func now() float64 {
	return float64(time.Now().UnixMicro()) / 1e6
}

func print(line fields) {
	text := must(json.Marshal(line))
	output.Lock()
	defer output.Unlock()
	fmt.Println(string(text))
}

// record prints an operation that has just ended.
func record(op string, start float64, err error, more fields) {
	line := fields{"op": op, "client": name, "start": start, "outcome": "done", "end": now()}
	if err != nil {
		print(fields{"error": err.Error()})
		line["outcome"] = "unknown"
		delete(line, "end")
	}
	for key, value := range more {
		line[key] = value
	}
	print(line)
}

func open(options ...kgo.Opt) *kgo.Client {
	return must(kgo.NewClient(append(options, kgo.SeedBrokers(strings.Split(os.Args[2], ",")...), kgo.ClientID(name),
		kgo.FetchMaxWait(100*time.Millisecond), kgo.MetadataMinAge(200*time.Millisecond),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(2*time.Millisecond),
		kgo.ProducerBatchCompression(kgo.NoCompression()), // not every client of the rounds can read its snappy
		kgo.RecordDeliveryTimeout(expires), kgo.ProduceRequestTimeout(1500*time.Millisecond))...))
}

// send produces the record of a number. done runs when its outcome is known.
func send(client *kgo.Client, number int, transaction string, done func(error)) {
	value, partition := fmt.Sprintf("%s.%d", name, number), int32(number%count)
	start := now()
	row := fields{"topic": topic, "partition": partition, "value": value, "number": number, "idempotent": true}
	if transaction != "" {
		row["transaction"] = transaction
	}
	client.Produce(context.Background(), &kgo.Record{Topic: topic, Partition: partition, Value: []byte(value)},
		func(given *kgo.Record, err error) {
			if err == nil {
				row["offset"] = given.Offset
			}
			record("send", start, err, row)
			done(err)
		})
}

func produce(ctx context.Context) {
	client := open()
	defer client.Close()
	slots := make(chan bool, waiting)
	for number := 0; ctx.Err() == nil; number++ {
		slots <- true
		send(client, number, "", func(error) { <-slots })
		time.Sleep(pause)
	}
	must(0, client.Flush(context.Background()))
}

// transact sends a few records in each transaction, and aborts every third one.
func transact(ctx context.Context) {
	var client *kgo.Client
	number := 0
	for round := 0; ctx.Err() == nil; round++ {
		if client == nil {
			client = open(kgo.TransactionalID(name), kgo.TransactionTimeout(10*time.Second))
		}
		transaction := fmt.Sprintf("%s/%d", name, round)
		err := client.BeginTransaction()
		if err == nil {
			var sent sync.WaitGroup
			var lock sync.Mutex
			for one := 0; one < 3; one++ {
				sent.Add(1)
				send(client, number, transaction, func(failed error) {
					lock.Lock()
					if failed != nil {
						err = failed
					}
					lock.Unlock()
					sent.Done()
				})
				number++
			}
			sent.Wait()
			isCommit, start := err == nil && round%3 != 2, now()
			decision := map[bool]string{true: "commit", false: "abort"}[isCommit]
			failed := client.EndTransaction(context.Background(), kgo.TransactionEndTry(isCommit))
			record("end_transaction", start, failed, fields{"transaction": transaction, "decision": decision})
			if err == nil {
				err = failed
			}
		}
		if err != nil {
			print(fields{"error": err.Error()})
			client.CloseAllowingRebalance()
			client = nil
		}
		time.Sleep(pause)
	}
	if client != nil {
		client.Close()
	}
}

// membership adds to a row how a member names itself, if it is one.
func membership(client *kgo.Client, protocol string, row fields) fields {
	if member, number := client.GroupMetadata(); member != "" && number > 0 {
		row["member"] = member
		row[map[bool]string{true: "epoch", false: "generation"}[protocol == "consumer"]] = number
	}
	return row
}

// consume is a member of a group that commits after each poll.
func consume(ctx context.Context, group, protocol string) {
	revoked := func(_ context.Context, _ *kgo.Client, taken map[string][]int32) {
		for _, partition := range taken[topic] {
			record("revoke", now(), nil, fields{"group": group, "topic": topic, "partition": partition})
		}
	}
	options := []kgo.Opt{
		kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.Balancers(kgo.RangeBalancer()), kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.SessionTimeout(6 * time.Second), kgo.HeartbeatInterval(500 * time.Millisecond),
		kgo.OnPartitionsAssigned(func(_ context.Context, client *kgo.Client, given map[string][]int32) {
			for _, partition := range given[topic] {
				record("assign", now(), nil, membership(client, protocol,
					fields{"topic": topic, "partition": partition, "offset": nil, "group": group}))
			}
		}),
		kgo.OnPartitionsRevoked(revoked), // also of lost ones
	}
	if protocol == "consumer" {
		options = append(options, kgo.ServerSideBalancer())
	}
	client := open(options...)
	for ctx.Err() == nil {
		start := now()
		limited, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		fetches := client.PollFetches(limited)
		cancel()
		end := now()
		next := map[int32]kgo.EpochOffset{}
		fetches.EachPartition(func(part kgo.FetchTopicPartition) {
			var rows [][]any
			part.EachRecord(func(one *kgo.Record) {
				rows = append(rows, []any{one.Offset, string(one.Value)})
				next[one.Partition] = kgo.EpochOffset{Epoch: one.LeaderEpoch, Offset: one.Offset + 1}
			})
			if rows != nil {
				print(fields{"op": "poll", "client": name, "start": start, "end": end, "outcome": "done",
					"topic": topic, "partition": part.Partition, "records": rows})
			}
		})
		if len(next) > 0 {
			commit(client, group, protocol, next)
		}
		client.AllowRebalance()
	}
	client.CloseAllowingRebalance()
}

// commit names the member if the membership was the same before and after the request.
func commit(client *kgo.Client, group, protocol string, next map[int32]kgo.EpochOffset) {
	start := now()
	member, number := client.GroupMetadata()
	results := map[int32]error{}
	client.CommitOffsetsSync(context.Background(), map[string]map[int32]kgo.EpochOffset{topic: next},
		func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, reply *kmsg.OffsetCommitResponse, err error) {
			for partition := range next {
				results[partition] = errors.Join(err, errors.New("no answer"))
			}
			if err != nil {
				return
			}
			for _, one := range reply.Topics {
				for _, partition := range one.Partitions {
					results[partition.Partition] = kerr.ErrorForCode(partition.ErrorCode)
				}
			}
		})
	for partition, one := range next {
		row := fields{"group": group, "topic": topic, "partition": partition, "offset": one.Offset}
		if after, last := client.GroupMetadata(); after == member && last == number {
			row = membership(client, protocol, row)
		}
		record("commit", start, results[partition], row)
	}
}

func main() {
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	switch os.Args[1] {
	case "producer":
		produce(ctx)
	case "transactor":
		transact(ctx)
	case "member":
		consume(ctx, os.Args[6], os.Args[7])
	}
}
