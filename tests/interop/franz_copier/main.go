// Copies a topic in transactions: franz_copier BOOTSTRAP SOURCE TARGET GROUP TRANSACTIONAL_ID.
// transactional_copier.py describes its output.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

var (
	guard  sync.Mutex
	owned  = map[int32]bool{}
	number = 0
)

func report(text string) {
	fmt.Println(strings.ReplaceAll(text, "\n", " "))
}

// changed notes the partitions that were assigned or revoked, and reports the current ones.
func changed(topic string, partitions map[string][]int32, have bool) {
	guard.Lock()
	defer guard.Unlock()
	for _, partition := range partitions[topic] {
		if have {
			owned[partition] = true
		} else {
			delete(owned, partition)
		}
	}
	var now []int
	for partition := range owned {
		now = append(now, int(partition))
	}
	sort.Ints(now)
	report("assigned " + strings.Trim(strings.ReplaceAll(fmt.Sprint(now), " ", ","), "[]"))
}

func open(bootstrap, source, group, id string) (*kgo.GroupTransactSession, error) {
	return kgo.NewGroupTransactSession(
		kgo.SeedBrokers(strings.Split(bootstrap, ",")...), kgo.ClientID("franz-go"), kgo.TransactionalID(id),
		kgo.TransactionTimeout(10*time.Second), kgo.ConsumerGroup(group), kgo.ConsumeTopics(source),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.RequireStableFetchOffsets(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.SessionTimeout(6*time.Second),
		kgo.HeartbeatInterval(300*time.Millisecond), kgo.FetchMaxWait(100*time.Millisecond),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, given map[string][]int32) {
			changed(source, given, true)
		}),
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, taken map[string][]int32) {
			changed(source, taken, false)
		}),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, lost map[string][]int32) {
			changed(source, lost, false)
		}),
	)
}

func copied(ctx context.Context, session *kgo.GroupTransactSession, target string) error {
	waiting, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	fetches := session.PollRecords(waiting, 10)
	if fetches.NumRecords() == 0 {
		return nil
	}
	number++
	if err := session.Begin(); err != nil {
		return err
	}
	promise := kgo.AbortingFirstErrPromise(session.Client())
	fetches.EachRecord(func(record *kgo.Record) {
		value := fmt.Sprintf("%d/%d", record.Partition, record.Offset)
		next := &kgo.Record{Topic: target, Partition: record.Partition, Value: []byte(value)}
		session.Produce(context.Background(), next, promise.Promise())
	})
	sent := promise.Err() == nil
	// The session rewinds to the committed offsets itself if it aborts.
	committed, err := session.End(context.Background(), kgo.TransactionEndTry(sent && number%4 != 1))
	if err != nil {
		return err
	}
	if committed {
		report("committed")
	} else {
		report("aborted")
	}
	return nil
}

func main() {
	bootstrap, source, target, group, id := os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5]
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	var session *kgo.GroupTransactSession
	for ctx.Err() == nil {
		var err error
		if session == nil {
			session, err = open(bootstrap, source, group, id)
		}
		if err == nil {
			err = copied(ctx, session, target)
		}
		if err != nil {
			report("renewed " + err.Error())
			if session != nil {
				session.Close()
				session = nil
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	if session != nil {
		session.Close()
	}
	report("left")
}
