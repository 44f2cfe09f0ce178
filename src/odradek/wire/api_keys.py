"""The keys of Kafka's APIs, with the types of their replies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar, cast

if TYPE_CHECKING:
    from kio.schema.consumer_group_describe.v1.response import ConsumerGroupDescribeResponse
    from kio.schema.consumer_group_heartbeat.v1.response import ConsumerGroupHeartbeatResponse
    from kio.schema.create_partitions.v3.response import CreatePartitionsResponse
    from kio.schema.create_topics.v7.response import CreateTopicsResponse
    from kio.schema.delete_groups.v2.response import DeleteGroupsResponse
    from kio.schema.delete_records.v2.response import DeleteRecordsResponse
    from kio.schema.delete_topics.v6.response import DeleteTopicsResponse
    from kio.schema.describe_cluster.v2.response import DescribeClusterResponse
    from kio.schema.describe_configs.v4.response import DescribeConfigsResponse
    from kio.schema.describe_groups.v6.response import DescribeGroupsResponse
    from kio.schema.describe_producers.v0.response import DescribeProducersResponse
    from kio.schema.describe_quorum.v2.response import DescribeQuorumResponse
    from kio.schema.describe_topic_partitions.v0.response import DescribeTopicPartitionsResponse
    from kio.schema.elect_leaders.v2.response import ElectLeadersResponse
    from kio.schema.find_coordinator.v6.response import FindCoordinatorResponse
    from kio.schema.heartbeat.v4.response import HeartbeatResponse
    from kio.schema.incremental_alter_configs.v1.response import IncrementalAlterConfigsResponse
    from kio.schema.init_producer_id.v5.response import InitProducerIdResponse
    from kio.schema.join_group.v9.response import JoinGroupResponse
    from kio.schema.list_groups.v5.response import ListGroupsResponse
    from kio.schema.list_offsets.v11.response import ListOffsetsResponse
    from kio.schema.list_transactions.v2.response import ListTransactionsResponse
    from kio.schema.offset_commit.v9.response import OffsetCommitResponse
    from kio.schema.offset_delete.v0.response import OffsetDeleteResponse
    from kio.schema.offset_fetch.v9.response import OffsetFetchResponse
    from kio.schema.offset_for_leader_epoch.v4.response import OffsetForLeaderEpochResponse
    from kio.schema.produce.v12.response import ProduceResponse
    from kio.schema.sasl_authenticate.v2.response import SaslAuthenticateResponse
    from kio.schema.sasl_handshake.v1.response import SaslHandshakeResponse
    from kio.schema.sync_group.v5.response import SyncGroupResponse
    from kio.schema.unregister_broker.v0.response import UnregisterBrokerResponse
    from kio.schema.write_txn_markers.v2.response import WriteTxnMarkersResponse

    R_co = TypeVar("R_co", covariant=True)

    class ApiKey(int, Generic[R_co]):
        """The key of an API whose reply is ``R_co``: kio's class for the newest version that clients use. Replies of
        older versions may have fewer fields."""


def _key(number: int) -> ApiKey[R_co]:
    return cast("ApiKey[R_co]", number)  # at run time a key is a number


PRODUCE: ApiKey[ProduceResponse] = _key(0)
FETCH = 1
LIST_OFFSETS: ApiKey[ListOffsetsResponse] = _key(2)
METADATA = 3
OFFSET_COMMIT: ApiKey[OffsetCommitResponse] = _key(8)
OFFSET_FETCH: ApiKey[OffsetFetchResponse] = _key(9)
FIND_COORDINATOR: ApiKey[FindCoordinatorResponse] = _key(10)
JOIN_GROUP: ApiKey[JoinGroupResponse] = _key(11)
HEARTBEAT: ApiKey[HeartbeatResponse] = _key(12)
LEAVE_GROUP: ApiKey[object] = _key(13)
SYNC_GROUP: ApiKey[SyncGroupResponse] = _key(14)
DESCRIBE_GROUPS: ApiKey[DescribeGroupsResponse] = _key(15)
LIST_GROUPS: ApiKey[ListGroupsResponse] = _key(16)
SASL_HANDSHAKE: ApiKey[SaslHandshakeResponse] = _key(17)
API_VERSIONS: ApiKey[object] = _key(18)
CREATE_TOPICS: ApiKey[CreateTopicsResponse] = _key(19)
DELETE_TOPICS: ApiKey[DeleteTopicsResponse] = _key(20)
DELETE_RECORDS: ApiKey[DeleteRecordsResponse] = _key(21)
INIT_PRODUCER_ID: ApiKey[InitProducerIdResponse] = _key(22)
OFFSET_FOR_LEADER_EPOCH: ApiKey[OffsetForLeaderEpochResponse] = _key(23)
ADD_PARTITIONS_TO_TXN: ApiKey[object] = _key(24)
ADD_OFFSETS_TO_TXN: ApiKey[object] = _key(25)
END_TXN: ApiKey[object] = _key(26)
WRITE_TXN_MARKERS: ApiKey[WriteTxnMarkersResponse] = _key(27)
TXN_OFFSET_COMMIT: ApiKey[object] = _key(28)
DESCRIBE_ACLS = 29
CREATE_ACLS = 30
DELETE_ACLS = 31
DESCRIBE_CONFIGS: ApiKey[DescribeConfigsResponse] = _key(32)
ALTER_CONFIGS = 33
ALTER_REPLICA_LOG_DIRS = 34
DESCRIBE_LOG_DIRS = 35
SASL_AUTHENTICATE: ApiKey[SaslAuthenticateResponse] = _key(36)
CREATE_PARTITIONS: ApiKey[CreatePartitionsResponse] = _key(37)
CREATE_DELEGATION_TOKEN = 38
RENEW_DELEGATION_TOKEN = 39
EXPIRE_DELEGATION_TOKEN = 40
DELETE_GROUPS: ApiKey[DeleteGroupsResponse] = _key(42)
ELECT_LEADERS: ApiKey[ElectLeadersResponse] = _key(43)
INCREMENTAL_ALTER_CONFIGS: ApiKey[IncrementalAlterConfigsResponse] = _key(44)
ALTER_PARTITION_REASSIGNMENTS = 45
LIST_PARTITION_REASSIGNMENTS = 46
OFFSET_DELETE: ApiKey[OffsetDeleteResponse] = _key(47)
DESCRIBE_CLIENT_QUOTAS = 48
ALTER_CLIENT_QUOTAS = 49
DESCRIBE_USER_SCRAM_CREDENTIALS = 50
ALTER_USER_SCRAM_CREDENTIALS = 51
DESCRIBE_QUORUM: ApiKey[DescribeQuorumResponse] = _key(55)
UPDATE_FEATURES = 57
ENVELOPE = 58
DESCRIBE_CLUSTER: ApiKey[DescribeClusterResponse] = _key(60)
DESCRIBE_PRODUCERS: ApiKey[DescribeProducersResponse] = _key(61)
UNREGISTER_BROKER: ApiKey[UnregisterBrokerResponse] = _key(64)
DESCRIBE_TRANSACTIONS = 65
LIST_TRANSACTIONS: ApiKey[ListTransactionsResponse] = _key(66)
ALLOCATE_PRODUCER_IDS = 67
CONSUMER_GROUP_HEARTBEAT: ApiKey[ConsumerGroupHeartbeatResponse] = _key(68)
CONSUMER_GROUP_DESCRIBE: ApiKey[ConsumerGroupDescribeResponse] = _key(69)
LIST_CONFIG_RESOURCES = 74
DESCRIBE_TOPIC_PARTITIONS: ApiKey[DescribeTopicPartitionsResponse] = _key(75)
ADD_RAFT_VOTER = 80
REMOVE_RAFT_VOTER = 81

FORWARDED = frozenset({
    CREATE_TOPICS, DELETE_TOPICS, CREATE_ACLS, DELETE_ACLS, ALTER_CONFIGS, CREATE_PARTITIONS, CREATE_DELEGATION_TOKEN,
    RENEW_DELEGATION_TOKEN, EXPIRE_DELEGATION_TOKEN, ELECT_LEADERS, INCREMENTAL_ALTER_CONFIGS,
    ALTER_PARTITION_REASSIGNMENTS, LIST_PARTITION_REASSIGNMENTS, ALTER_CLIENT_QUOTAS, ALTER_USER_SCRAM_CREDENTIALS,
    DESCRIBE_QUORUM, UPDATE_FEATURES, UNREGISTER_BROKER, ADD_RAFT_VOTER, REMOVE_RAFT_VOTER,
})  # fmt: skip
"""The APIs whose requests a broker of a cluster forwards to the controller, as in Kafka."""
