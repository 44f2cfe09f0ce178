// One member of a classic group: franz_member BOOTSTRAP TOPIC GROUP STRATEGY. group_member.py describes its output.
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
	guard sync.Mutex
	owned = map[int32]bool{}
)

func report(text string) {
	fmt.Println(text)
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

func main() {
	bootstrap, topic, group, strategy := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	balancers := map[string]kgo.GroupBalancer{
		"range": kgo.RangeBalancer(), "roundrobin": kgo.RoundRobinBalancer(),
		"sticky": kgo.StickyBalancer(), "cooperative-sticky": kgo.CooperativeStickyBalancer(),
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(bootstrap), kgo.ClientID("franz-go"), kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic),
		kgo.Balancers(balancers[strategy]), kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.SessionTimeout(6*time.Second),
		kgo.RebalanceTimeout(30*time.Second), kgo.HeartbeatInterval(300*time.Millisecond),
		kgo.FetchMaxWait(100*time.Millisecond),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, given map[string][]int32) {
			changed(topic, given, true)
		}),
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, taken map[string][]int32) {
			changed(topic, taken, false)
		}),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, lost map[string][]int32) {
			changed(topic, lost, false)
		}),
	)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	for ctx.Err() == nil {
		fetches := client.PollFetches(ctx)
		var records []*kgo.Record
		fetches.EachRecord(func(record *kgo.Record) {
			report(fmt.Sprintf("read %d %d", record.Partition, record.Offset))
			records = append(records, record)
		})
		if len(records) > 0 {
			if err := client.CommitRecords(context.Background(), records...); err != nil {
				report("refused " + err.Error())
			}
		}
		client.AllowRebalance()
	}
	client.CloseAllowingRebalance()
	report("left")
}
