"""One file per API, `kNN_name` with NN its key: `handle(broker, context, message)`, and what each version changed.

``handle`` returns a mapping for ``wire.schemas.encode``, ready bytes, a list of chunks, ``None`` for "no reply",
or a Deferred of one of these. Files are loaded with the first request that needs them, or before. What is advertised is
what stands in this table and nothing else.
"""

SERVED: dict[str, tuple[int, int]] = {
    "k00_produce": (3, 13),
    "k01_fetch": (4, 18),
    "k02_list_offsets": (1, 11),
    "k03_metadata": (0, 13),
    "k08_offset_commit": (2, 10),
    "k09_offset_fetch": (1, 10),
    "k10_find_coordinator": (0, 6),
    "k11_join_group": (0, 9),
    "k12_heartbeat": (0, 4),
    "k13_leave_group": (0, 5),
    "k14_sync_group": (0, 5),
    "k15_describe_groups": (0, 6),
    "k16_list_groups": (0, 5),
    "k17_sasl_handshake": (0, 1),
    "k18_api_versions": (0, 4),
    "k19_create_topics": (2, 7),
    "k20_delete_topics": (1, 6),
    "k21_delete_records": (0, 2),
    "k22_init_producer_id": (0, 5),
    "k23_offset_for_leader_epoch": (2, 4),
    "k29_describe_acls": (1, 3),
    "k30_create_acls": (1, 3),
    "k31_delete_acls": (1, 3),
    "k32_describe_configs": (1, 4),
    "k33_alter_configs": (0, 2),
    "k34_alter_replica_log_dirs": (1, 2),
    "k35_describe_log_dirs": (1, 5),
    "k36_sasl_authenticate": (0, 2),
    "k37_create_partitions": (0, 3),
    "k38_create_delegation_token": (1, 3),
    "k39_renew_delegation_token": (1, 2),
    "k40_expire_delegation_token": (1, 2),
    "k41_describe_delegation_token": (1, 3),
    "k42_delete_groups": (0, 2),
    "k43_elect_leaders": (0, 2),
    "k44_incremental_alter_configs": (0, 1),
    "k45_alter_partition_reassignments": (0, 1),
    "k46_list_partition_reassignments": (0, 0),
    "k47_offset_delete": (0, 0),
    "k48_describe_client_quotas": (0, 1),
    "k49_alter_client_quotas": (0, 1),
    "k50_describe_user_scram_credentials": (0, 0),
    "k51_alter_user_scram_credentials": (0, 0),
    "k55_describe_quorum": (0, 2),
    "k57_update_features": (0, 2),
    "k60_describe_cluster": (0, 2),
    "k61_describe_producers": (0, 0),
    "k64_unregister_broker": (0, 0),
    "k68_consumer_group_heartbeat": (0, 1),
    "k69_consumer_group_describe": (0, 1),
    "k74_list_config_resources": (0, 1),
    "k75_describe_topic_partitions": (0, 0),
    "k80_add_raft_voter": (0, 1),
    "k81_remove_raft_voter": (0, 0),
}
"""File name → oldest and newest version served."""

FREQUENT = (0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 18, 22, 23, 68)
"""API keys whose handlers are loaded while the broker has nothing to do: what producers and consumers ask for."""

ADVERTISED_OLDEST = {0: 0}
"""API key → a version that is advertised though it is not served: old librdkafka looks for it, as Kafka 4 knows."""
