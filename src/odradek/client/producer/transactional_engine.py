"""The engine of producers with a ``transactional_id``. ``transaction`` decides; this module sends and waits.

The requests to the transaction's coordinator never overlap: a request to add partitions that arrives after EndTxn would
begin a transaction that nothing ends.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from odradek.batches.header import TRANSACTIONAL_BIT
from odradek.client.arguments import as_offsets
from odradek.client.cluster import GROUP, TRANSACTIONAL_ID, Deadline, worth_retrying
from odradek.client.config import ClientConfig
from odradek.client.errors import LastFailure, RequestTimedOut
from odradek.client.producer import transaction_requests as requests
from odradek.client.producer.accumulator import CONCURRENT_BACKOFF_MS, ProducerBatch
from odradek.client.producer.config import ProducerConfig
from odradek.client.producer.engine import Delivered, ProducerEngine, RecordToSend
from odradek.client.producer.shared_transaction import SharedTransaction, produce_ceiling
from odradek.client.producer.transaction import (
    BROKER_ADDS_PARTITIONS,
    Consequence,
    ProducerTransaction,
    TransactionCall,
    TransactionPhase,
    consequence_of,
)
from odradek.core.errors import ErrorCode, KafkaError, OdradekError
from odradek.core.ids import NO_PRODUCER, ConsumerGroupMetadata, OffsetAndMetadata, ProducerIdentity, TopicPartition
from odradek.wire.api_keys import END_TXN, FIND_COORDINATOR, PRODUCE

logger = logging.getLogger("odradek.producer")

_FEATURE = "transaction.version"
_EMPTY_SHARE = (
    "the shared transaction has neither records nor offsets, and brokers commit no empty one: call abort_transaction()"
)
_AGAIN = ": call it again"
_ORDER = (Consequence.FENCED, Consequence.FATAL, Consequence.ABORTABLE, Consequence.FIND_COORDINATOR, Consequence.RETRY)


class TransactionalEngine(ProducerEngine):
    """The engine of a producer with a ``transactional_id``.

    Its calls raise IllegalState, TransactionAbortable, TransactionFatal, ProducerFenced, RequestTimedOut."""

    def __init__(
        self,
        config: ProducerConfig,
        client: ClientConfig,
        on_loop: Callable[[Callable[[], None]], object],
        freed: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(config, client, on_loop, freed)
        assert config.transactional_id is not None
        self._transactional_id = config.transactional_id
        self._id = config.transactional_id
        self._attributes = TRANSACTIONAL_BIT
        self.transaction = ProducerTransaction(self._id)
        self._version = 0
        self._version_learned_s = time.monotonic()
        self._drained = asyncio.Event()
        self._call_lock = asyncio.Lock()
        self._request_lock = asyncio.Lock()
        self._last = LastFailure()  # of the current request

    # --- the caller's calls -----------------------------------------------------------------------------------

    async def init(self) -> None:
        async with self._call_lock:
            with self.lock:
                self.transaction.init()
            producer = await self._init(NO_PRODUCER, self._deadline())
            with self.lock:
                self.transaction.on_initialized(producer)
                self._adopt(producer)

    def begin(self) -> None:
        """Runs on the caller's thread, without a request."""
        with self.lock:
            self.transaction.begin(self._version)
            self.ceiling = produce_ceiling(self._version)

    async def share(self, partitions: Sequence[TopicPartition]) -> SharedTransaction:
        async with self._call_lock:
            with self.lock:
                self.transaction.check(TransactionCall.SEND)
                needs_epoch = self.transaction.needs_epoch_to_share()
            if needs_epoch:
                producer = await self._init(self.transaction.producer, self._deadline())
                with self.lock:
                    self.transaction.on_new_epoch(producer)
                    self._adopt(producer)
            with self.lock:
                missing = self.transaction.partitions_to_add(partitions)
            if missing:
                await self._add(missing)
            with self.lock:
                self.transaction.check(TransactionCall.SEND)
                self.transaction.on_shared()
                return SharedTransaction(self._id, self.transaction.producer, self.transaction.version)

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int], group: ConsumerGroupMetadata
    ) -> None:
        chosen = as_offsets(offsets)
        _check_group(group)
        async with self._call_lock:
            with self.lock:
                self.transaction.check(TransactionCall.SEND_OFFSETS)
                if not chosen:
                    return
                is_unadded = self.transaction.must_add_group(group.group_id)
                self.transaction.on_send()
            producer, deadline = self.transaction.producer, self._deadline()
            try:
                if is_unadded:
                    await self._call(requests.add_offsets(self._id, producer, group.group_id), deadline)
                    self.transaction.on_added(group_id=group.group_id)
                by_itself = self.transaction.version >= BROKER_ADDS_PARTITIONS
                message = requests.commit_offsets(self._id, producer, group, chosen, by_itself=by_itself)
                await self._call(message, deadline)
                self.transaction.on_added(group_id=group.group_id)
            except RequestTimedOut as error:  # the offsets may be missing, so the transaction must not commit
                text = str(error).removesuffix(_AGAIN)
                raise self._fail(Consequence.ABORTABLE, ErrorCode.request_timed_out, text, error) from error
            except BaseException as error:  # a cancellation, too: the caller could commit without the offsets
                if self.transaction.state is TransactionPhase.OPEN:
                    text = f"offsets of group {group.group_id} were not added: {type(error).__name__}"
                    self._fail(Consequence.ABORTABLE, ErrorCode.unknown_server_error, text)
                raise

    async def commit(self) -> None:
        async with self._ending(commit=True) as deadline:
            await self._drain(deadline)
            with self.lock:
                if self.failure is not None and self.transaction.may_send:  # also an error of the user's callback
                    self._note_failure(self.failure)
                self.transaction.check(TransactionCall.COMMIT)
            await self._end(deadline, commit=True)

    async def abort(self) -> None:
        async with self._ending(commit=False) as deadline:
            why = KafkaError(ErrorCode.transaction_abortable, "the transaction was aborted before the record was sent")
            self._give_up_all(why)
            await self._drain(deadline)
            await self._end(deadline, commit=False)
            with self.lock:
                self.failure = None

    async def abort_open(self, timeout_s: float | None) -> None:
        """Aborts an open transaction before the producer is closed. Drops the unsent records if a failure remains.

        If the abort takes longer than ``timeout_s``, leaves the transaction to the coordinator, which aborts it after
        ``transaction_timeout_ms``."""
        try:
            if self.transaction.is_open or self.transaction.state is TransactionPhase.ABORTING:
                async with asyncio.timeout(timeout_s):
                    await self.abort()
            elif self.transaction.state is TransactionPhase.COMMITTING:
                logger.warning(
                    "transactional id %s: closed without an answer to the commit, which may have succeeded", self._id
                )
        except TimeoutError:
            logger.warning(
                "transactional id %s: the open transaction was not aborted within %s s; the coordinator aborts it "
                "after transaction_timeout_ms=%d", self._id, timeout_s, self.producer_config.transaction_timeout_ms,
            )  # fmt: skip
        except OdradekError as error:
            logger.warning("transactional id %s: the open transaction was not aborted: %s", self._id, error)
        if self.transaction.failure is not None:
            self._give_up_all(self.transaction.failure)
        with self.lock:
            self.failure = None

    # --- the end of a transaction -----------------------------------------------------------------------------

    @asynccontextmanager
    async def _ending(self, *, commit: bool) -> AsyncIterator[Deadline]:
        async with self._call_lock:
            with self.lock:
                self.transaction.end(commit=commit)
            yield self._deadline()

    async def _drain(self, deadline: Deadline) -> None:
        """Waits until no record is buffered."""
        with self.lock:
            self.flushing += 1
        self._wake.set()
        try:
            async with asyncio.timeout(max(deadline.left_ms, 1) / 1000):
                while self.buffered:
                    self._drained.clear()
                    await self._drained.wait()
        except TimeoutError:
            raise RequestTimedOut(
                f"{self.buffered} bytes were not delivered within max_block_ms={deadline.limit_ms}: call again, or "
                "abort_transaction()"
            ) from None
        finally:
            with self.lock:
                self.flushing -= 1

    async def _end(self, deadline: Deadline, *, commit: bool) -> None:
        transaction = self.transaction
        producer = NO_PRODUCER
        with self.lock:
            has_to_end = transaction.end_request()
        if has_to_end:
            by_itself = transaction.version >= BROKER_ADDS_PARTITIONS
            request = requests.end(self._id, transaction.producer, commit=commit, returns_epoch=by_itself)
            reply = await self._call(request, deadline)
            with self.lock:
                transaction.on_end_reply()
            if reply is not None:
                producer = ProducerIdentity(getattr(reply, "producer_id", -1), getattr(reply, "producer_epoch", -1))
        if not commit and transaction.needs_epoch():
            producer = await self._init(transaction.producer, deadline)
        with self.lock:
            if transaction.on_end(producer):
                self._adopt(producer)
        await self._refresh_version()

    def _adopt(self, producer: ProducerIdentity) -> None:
        """Uses another identity, with sequences from 0. Requires ``lock`` and empty queues."""
        self.producer_id, self._epoch = producer
        self.queues.clear()

    async def _init(self, producer: ProducerIdentity, deadline: Deadline) -> ProducerIdentity:
        request = requests.init(self._id, self.producer_config.transaction_timeout_ms, producer)
        reply = await self._call(request, deadline)
        return ProducerIdentity(int(reply.producer_id), int(reply.producer_epoch))

    # --- requests ---------------------------------------------------------------------------------------------

    def _deadline(self) -> Deadline:
        return self.cluster.deadline(self.producer_config.max_block_ms)

    async def _call(self, request: requests.TransactionRequest, deadline: Deadline) -> Any:
        """Sends a request until it succeeds. None: the coordinator had no transaction to abort.

        Raises RequestTimedOut, or the error of ``transaction.fail`` if the broker refuses the request."""
        async with self._request_lock:
            try:
                async with asyncio.timeout(max(deadline.left_ms, 1) / 1000):
                    return await self._send_until_answered(request)
            except TimeoutError:
                raise RequestTimedOut(
                    f"{request.text}: not done within max_block_ms={deadline.limit_ms}{self._why()}{_AGAIN}"
                ) from None

    def _why(self) -> str:
        return f" ({text})" if (text := str(self._last)) else ""

    async def _send_until_answered(self, request: requests.TransactionRequest) -> object:
        backoff_ms: float = self.config.retry_backoff_ms
        self._last = LastFailure()
        while True:
            try:
                refused = await self._ask(request)
            except KafkaError as error:
                self._last.note(error)
                consequence = consequence_of(FIND_COORDINATOR, error.code)
                if not worth_retrying(error) and consequence not in (Consequence.RETRY, Consequence.FIND_COORDINATOR):
                    raise self._fail(consequence, error.code, f"{request.text}: {error}", error) from error
                self._forget_coordinator(request)
            except OdradekError as error:
                self._last.note(error)
                if not worth_retrying(error):
                    raise
                self._forget_coordinator(request)
            else:
                if not isinstance(refused, list):
                    return refused
                worst = min(refused, key=lambda one: _ORDER.index(consequence_of(request.api_key, one.code)))
                consequence = consequence_of(request.api_key, worst.code)
                self._last.note(KafkaError(worst.code), requests.reason(worst))
                if request.api_key == END_TXN and self.transaction.is_no_transaction(worst.code):
                    return None
                if request.api_key == END_TXN and self.transaction.is_empty_share(worst.code):
                    raise self._fail(Consequence.ABORTABLE, worst.code, f"{request.text}: {_EMPTY_SHARE}")
                if consequence is Consequence.FIND_COORDINATOR:
                    self._forget_coordinator(request)
                elif consequence is not Consequence.RETRY:
                    raise self._fail(consequence, worst.code, f"{request.text}: {requests.reason(worst)}")
                if worst.code is ErrorCode.concurrent_transactions:
                    await asyncio.sleep(CONCURRENT_BACKOFF_MS / 1000)
                    continue
            await asyncio.sleep(backoff_ms / 1000)
            backoff_ms = min(backoff_ms * 2, self.config.retry_backoff_max_ms)

    async def _ask(self, request: requests.TransactionRequest) -> object:
        """Sends a request once. Returns the reply, or the list of the errors in it."""
        key, key_type = _coordinator_of(request, self._id)
        node = await self.cluster.coordinator(key, key_type)
        connection = await self.cluster.connection(node.node_id)
        self._version = connection.features.get(_FEATURE, 0)
        reply = await connection.call(request.api_key, request.message, ceiling=request.ceiling)
        return list(requests.refusals(request.api_key, reply)) or reply

    def _forget_coordinator(self, request: requests.TransactionRequest) -> None:
        self.cluster.forget_coordinator(*_coordinator_of(request, self._id))

    async def _refresh_version(self) -> None:
        """Asks for the cluster's features at most every ``metadata_max_age_ms``: they may change while a connection
        is open."""
        if (time.monotonic() - self._version_learned_s) * 1000 < self.config.metadata_max_age_ms:
            return
        self._version_learned_s = time.monotonic()
        try:
            node = await self.cluster.coordinator(self._id, TRANSACTIONAL_ID)
            connection = await self.cluster.connection(node.node_id)
            await connection.refresh_features()
            self._version = connection.features.get(_FEATURE, 0)
        except OdradekError:
            return  # the next request to the coordinator finds the reason

    # --- the sender's side ------------------------------------------------------------------------------------

    def put(self, tp: TopicPartition, record: RecordToSend, on_delivery: Delivered | None) -> ProducerBatch:
        self.transaction.check_send()
        return super().put(tp, record, on_delivery)

    def put_packed(self, batch: ProducerBatch) -> None:
        self.transaction.check_send()
        super().put_packed(batch)

    async def _leaders(self, wanted: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Returns the known leaders. Before the first batch of a partition is sent, adds the partition to the
        transaction."""
        with self.lock:
            failure = None if self.transaction.may_send else self.transaction.failure
            missing = self.transaction.partitions_to_add(wanted)
        if failure is not None:
            self._give_up_all(failure)
            return {}
        if missing:
            await self._add(missing)
        leaders = await super()._leaders(wanted)
        with self.lock:  # meanwhile the transaction may have ended and another one begun
            unadded = self.transaction.partitions_to_add(leaders)
            if not self.transaction.may_send:
                return {}
            self.transaction.on_send()
            return {tp: leader for tp, leader in leaders.items() if tp in self.queues and tp not in unadded}

    def _give_up(self, tp: TopicPartition, error: Exception) -> None:
        if tp in self.queues:
            super()._give_up(tp, error)

    async def _add(self, partitions: list[TopicPartition]) -> None:
        async with self._request_lock:
            with self.lock:
                if not self.transaction.may_send:
                    return
                self.transaction.on_send()
            request = requests.add_partitions(self._id, self.transaction.producer, partitions)
            deadline = self._lookup_deadline()
            try:
                async with asyncio.timeout(max(deadline.left_ms, 1) / 1000):
                    await self._send_until_answered(request)
            except TimeoutError:
                text = f"{request.text}: not done within {deadline.limit_ms} ms{self._why()}"
                raise RequestTimedOut(text) from None
            with self.lock:
                self.transaction.on_added(partitions)

    def _is_worth_retrying(self, batch: ProducerBatch, code: ErrorCode | None, error: Exception) -> bool:
        return self.transaction.may_send and super()._is_worth_retrying(batch, code, error)

    def _report(self, batch: ProducerBatch, offset: int, error: Exception | None) -> None:
        if error is not None:
            with self.lock:
                if self.transaction.may_send:
                    self._note_failure(error)
        super()._report(batch, offset, error)
        self._drained.set()
        if error is not None:
            self._wake.set()

    def _note_failure(self, error: Exception) -> None:
        code = error.code if isinstance(error, KafkaError) else ErrorCode.request_timed_out
        self.transaction.fail(consequence_of(PRODUCE, code), code, f"records were not delivered: {error}", error)

    def _fail(self, consequence: Consequence, code: ErrorCode, text: str, cause: Exception | None = None) -> KafkaError:
        with self.lock:
            return self.transaction.fail(consequence, code, text, cause).kept()


def _coordinator_of(request: requests.TransactionRequest, transactional_id: str) -> tuple[str, int]:
    return (transactional_id, TRANSACTIONAL_ID) if request.group_id is None else (request.group_id, GROUP)


def _check_group(group: object) -> None:
    """Checks the identity of a consumer in its group. Raises TypeError, ValueError."""
    if not isinstance(group, ConsumerGroupMetadata):
        raise TypeError(f"group: expected the result of consumer.group_metadata(), not {group!r}")
    if not group.group_id:
        raise ValueError("group: its group_id is empty")
    if group.generation > 0 and not group.member_id:
        raise ValueError("group: a generation without a member_id: pass consumer.group_metadata() unchanged")
