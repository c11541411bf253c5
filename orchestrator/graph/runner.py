"""Runs a graph on a host: new or resumed, forward and, when that fails after a change, back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from orchestrator.errors import ExitCode, LockedError, OrchestrateError, UsageError
from orchestrator.graph import resume as resuming
from orchestrator.graph.heartbeat import heartbeat
from orchestrator.graph.model import Cancelled, GraphSpec, State
from orchestrator.graph.plan import Plan
from orchestrator.graph.rollback import roll_back, to_undo
from orchestrator.graph.scheduler import NOT_SELECTED, Limits, Scheduler, SkipRefused
from orchestrator.graph.session import Listener, RunSession, SessionFactory
from orchestrator.graph.signals import stop_on_signals
from orchestrator.store.jsontext import Mask, storable
from orchestrator.store.leases import DEFAULT_TTL_S, RUN_LEASE, Lease
from orchestrator.store.process import who
from orchestrator.store.records import RunRecord, RunState, TaskRecord
from orchestrator.store.store import Store

Guard = Callable[[RunSession], AbstractContextManager[object]]
GOING_BACK = (RunState.ROLLING_BACK, RunState.ROLLBACK_UNVERIFIED)


@dataclass(frozen=True)
class RunResult:
    """How a run ended. `tasks` are as stored, in the order of the graph."""

    run_id: str
    state: RunState
    exit_code: int
    reason: str
    tasks: tuple[TaskRecord, ...]


@dataclass(frozen=True)
class _Ending:
    state: RunState
    exit_code: int
    reason: str


class Runner:
    """Runs one graph on one host.

    `session_factory(host_name)` opens what tasks see as `ctx.host`; it is called once per host, on first use, and the
    result's close() at the end, if it has one. `guard(session)` is entered while hosts may be changed or occupied: it sets
    `session.before_change`, which takes the lock on the host itself.
    `mask` removes secrets from everything that is written to the store.
    """

    def __init__(
        self,
        store: Store,
        graph: GraphSpec,
        session_factory: SessionFactory,
        *,
        host: str,
        settings: Mapping[str, str] | None = None,
        mask: Mask | None = None,
        guard: Guard | None = None,
        limits: Limits | None = None,
        lease_ttl_s: float = DEFAULT_TTL_S,
    ) -> None:
        self.store = store
        self.plan = Plan(graph)
        self.host = host
        self._factory = session_factory
        self._settings = dict(settings or {})
        self._mask = mask
        self._guard = guard
        self._limits = limits or Limits()
        self._lease_ttl_s = lease_ttl_s
        self._needs_lock = any(spec.needs_lock for spec in graph.tasks)

    def run(
        self,
        run_id: str | None = None,
        *,
        resume: bool = False,
        only: Iterable[str] = (),
        skip: Iterable[str] = (),
        force: Iterable[str] = (),
        on_event: Listener | None = None,
    ) -> RunResult:
        """A new run (under `run_id` if given), or with resume=True the rest of run `run_id`.

        Raises only for what keeps the run from starting (UsageError, LockedError, PlanStaleError, StoreError);
        everything later is in the result and in the store.
        """
        skipped = self._skipped(tuple(only), tuple(skip))
        force = tuple(force)
        self.plan.check_keys(force, "--force")
        with self._leased(run_id, resume) as (run, lease):
            self._refuse_to_skip(run, skipped)
            session = RunSession(
                self.store, self.plan, run.id, run.host, {**run.settings, **self._settings}, self._factory, self._mask,
                on_event, lease,
            )  # fmt: skip
            try:
                with stop_on_signals(session.stop):
                    self._begin(session, run, resume)
                    guard = self._guard(session) if self._guard and self._needs_lock else nullcontext()
                    with guard, heartbeat(session, lease):
                        ending = self._carry_out(session, run, skipped, frozenset(force))
                    return self._finish(session, ending)
            finally:
                session.close()

    def _skipped(self, only: tuple[str, ...], skip: tuple[str, ...]) -> dict[str, str]:
        self.plan.check_keys(only, "--only")
        self.plan.check_keys(skip, "--skip")
        needed = self.plan.needed_for(only) if only else set(self.plan.specs)
        reasons = {key: NOT_SELECTED for key in self.plan.specs if key not in needed}
        return reasons | dict.fromkeys(skip, "skipped by --skip")

    def _refuse_to_skip(self, run: RunRecord, skipped: Mapping[str, str]) -> None:
        """Before anything happens, since a failure later on would undo the whole run."""
        if run.state in GOING_BACK:
            return
        for task in self.store.tasks.list(run.id):
            cut_off = task.state in (State.UNKNOWN, State.IN_PROGRESS)
            if task.key in skipped and (cut_off or (task.half_done and skipped[task.key] != NOT_SELECTED)):
                raise UsageError(
                    f"run {run.id}: task {task.key} may not be skipped, since an earlier attempt at it was cut off:"
                    f" `orchestrate run {run.graph} --resume {run.id}` without --skip or --only comes to its end"
                )

    def _create(self, run_id: str) -> None:
        with self.store.transaction():
            run = self.store.runs.create(
                run_id, self.plan.graph.name, self.host, self.plan.definition, self._masked_settings()
            )
            self.store.tasks.create(run_id, self.plan.graph.tasks, self.host)
            self.store.events.append(
                run_id, None, "run.created", {"graph": run.graph, "host": run.host, "by": run.started_by}
            )

    def _masked_settings(self) -> dict[str, str]:
        mask = self._mask or (lambda text: text)
        return {mask(name): mask(value) for name, value in self._settings.items()}

    def _existing(self, run_id: str | None) -> RunRecord | None:
        """The run to resume; None when there is none yet."""
        if run_id is not None:
            return self.store.runs.get(run_id)
        return self.store.runs.latest(self.host, self.plan.graph.name)

    @contextmanager
    def _leased(self, run_id: str | None, resume: bool) -> Iterator[tuple[RunRecord, Lease]]:
        """The run and the lease of its host, or of the run itself for graphs that neither change nor occupy a host.

        A new run is made together with taking the lease: one that is refused leaves no trace.
        """
        run = self._existing(run_id) if resume else None
        chosen = run.id if run else run_id or self.store.runs.new_id()
        name = (run.host if run else self.host) if self._needs_lock else f"{RUN_LEASE}{chosen}"
        lease = self.store.leases.acquire(
            name, who(), chosen, self._lease_ttl_s, first=lambda: None if run else self._create(chosen)
        )
        try:
            yield self.store.runs.get(chosen), lease
        finally:
            self.store.leases.release(lease)

    def _begin(self, session: RunSession, run: RunRecord, resume: bool) -> None:
        resuming.check_definition(session, run)
        going_back = run.state in GOING_BACK
        with session.record() as event:
            self.store.runs.take(run.id, RunState.ROLLING_BACK if going_back else RunState.RUNNING)
            event("run.resumed" if resume else "run.started", None, was=run.state, by=who())
        if resume:
            resuming.mark_unconfirmed(session)

    def _carry_out(
        self, session: RunSession, previous: RunRecord, skipped: Mapping[str, str], forced: frozenset[str]
    ) -> _Ending:
        try:
            if previous.state in GOING_BACK:
                session.load_outputs(self.store.tasks.list(session.run_id))
                return self._back(session, previous.reason or "an earlier attempt to roll back did not come to an end")
            if previous.state is not RunState.PENDING:
                resuming.reopen(session, self._limits.grace_s)
            scheduler = Scheduler(session, self._limits, skipped, forced)
            scheduler.run()
        except OrchestrateError as error:
            return self._failed(session, error)
        except Cancelled:  # asked to stop while the changes of the earlier attempt were looked at again
            return _stopped(session)
        if scheduler.failure is not None:
            return self._failed(session, scheduler.failure)
        if session.stop.is_set():
            return _stopped(session)
        outcome = session.outcome
        if outcome is not None:
            return _Ending(RunState.COMPLETED, int(outcome.exit_code), outcome.reason)
        return _Ending(RunState.COMPLETED, ExitCode.DONE, "")

    def _failed(self, session: RunSession, error: BaseException) -> _Ending:
        reason = str(error) or type(error).__name__
        if session.stop.kind == "lock_lost":
            return _stopped(session)
        # Where somebody else works, or a wrong option was given, nothing is touched, also not to undo.
        if isinstance(error, LockedError | SkipRefused):
            state = RunState.INTERRUPTED if to_undo(session) else RunState.FAILED
            return _Ending(state, error.exit_code, reason)
        if to_undo(session):
            return self._back(session, reason)
        code = error.exit_code if isinstance(error, OrchestrateError) else ExitCode.FAILED_UNCHANGED
        return _Ending(RunState.FAILED, code, reason)

    def _back(self, session: RunSession, reason: str) -> _Ending:
        problem = roll_back(session, reason, self._limits.grace_s)
        if problem:
            told = reason if reason.endswith(problem) else f"{reason}; {problem}"  # a resume may meet it again
            return _Ending(RunState.ROLLBACK_UNVERIFIED, ExitCode.ROLLBACK_UNVERIFIED, told)
        return _Ending(RunState.ROLLED_BACK, ExitCode.ROLLED_BACK, f"{reason}; rolled back and verified")

    def _finish(self, session: RunSession, ending: _Ending) -> RunResult:
        reason = storable(session.masked(ending.reason))
        with session.record() as event:
            self.store.runs.finish(session.run_id, ending.state, int(ending.exit_code), reason)
            event("run.finished", None, state=ending.state, exit_code=int(ending.exit_code), reason=reason)
        tasks = tuple(self.store.tasks.list(session.run_id))
        return RunResult(session.run_id, ending.state, int(ending.exit_code), reason, tasks)


def _stopped(session: RunSession) -> _Ending:
    kind = session.stop.kind
    code = ExitCode.LOCKED if kind == "lock_lost" else ExitCode.INTERRUPTED
    state = RunState.CANCELLED if kind == "cancelled" else RunState.INTERRUPTED
    return _Ending(state, code, session.stop.reason)
