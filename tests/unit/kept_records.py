"""The messages whose bytes are kept in tests/golden/records, one or more of each kind.

``python -m tests.unit.kept_records`` writes the missing ones; none is written again.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from dmq.log import Kinds
from haproc.classify.model import InsertShape, Kind, OperationClass
from haproc.classify.rights import Rights, Role
from haproc.config.model import Address
from haproc.engine.interface import Settings
from haproc.engine.statement import ArrowRows, SparkPlan, SqlText
from haproc.jobs.model import (
    Ending,
    Event,
    Fenced,
    FileRole,
    GrantedSubmission,
    JobAttempt,
    JobFile,
    JobLimits,
    Kill,
    Outcome,
    Submission,
)
from haproc.jobs.records import RECORDS as JOBS
from haproc.membership.peers import Member
from haproc.replicate.records.control import (
    Abandon,
    Change,
    Checksums,
    Copy,
    FailureVote,
    Fence,
    Revoke,
    Roster,
    Skip,
    Verify,
    VoteWithdrawal,
)
from haproc.replicate.records.operation import (
    KINDS,
    Claim,
    Decision,
    DecisionKind,
    FailureReport,
    Message,
    Operation,
)
from haproc.replicate.records.rows import (
    ApplicationFailure,
    ComputedPlan,
    Filling,
    Part,
    Passed,
    QueryWrite,
    Rows,
    SessionRef,
    SpooledRows,
)
from haproc.sessions.durable import RECORDS as SESSIONS
from haproc.sessions.durable import Adoption, Written
from haproc.sessions.journal import (
    ArtifactEntry,
    Effect,
    PlanEntry,
    SqlEntry,
    StateEntry,
    Variable,
    VariablesEntry,
)
from haproc.spark_error import Context, details

DETAILS = details(
    ["org.apache.spark.sql.AnalysisException", "java.lang.Exception"],
    {"relationName": "`flüge`", "searchPath": "[`a`]"},
    [
        Context(object_type="VIEW", object_name="v", start=3, stop=9, fragment="flüge"),
        Context(of_frame=True, call_site="job.py:7", fragment="select", summary="== DataFrame =="),
    ],
)
GOLDEN = Path(__file__).parents[1] / "golden" / "records"
ID = "2f1c6a5e9d3b4870a1b2c3d4e5f60718"
FAILURE = ApplicationFailure(
    "TABLE_OR_VIEW_ALREADY_EXISTS", "42P07", "Die Tabelle »flüge« gibt es schon 😀"
)
HEAD = "INSERT INTO flüge VALUES "
INSERT = Operation(
    id=ID,
    operation_class=OperationClass.ASYNCHRONOUS,
    kind=Kind.INSERT,
    origin="a",
    fingerprint="c0ffee",
    write=SqlText(f"{HEAD}(1, 'Zürich 😀'), (2, NULL)"),
    settings=Settings("main", "air", "Europe/Berlin", False, (("spark.sql.a", "1"), ("b", ""))),
    user="ada",
    reads=frozenset({"main.air.b", "main.air.a"}),
    writes=frozenset({"main.air.flüge"}),
    tables_known=True,
    insert=InsertShape(len(HEAD), 2, "int,string"),
    created_ms=1_790_000_000_123,
)
DDL = replace(
    INSERT,
    operation_class=OperationClass.SYNCHRONOUS_PARALLEL,
    kind=Kind.OTHER_DDL,
    write=SqlText("MSCK REPAIR TABLE flüge"),
    settings=Settings(),
    reads=frozenset(),
    writes=frozenset(),
    tables_known=False,
    insert=None,
)
A = Member("a", Address("host-a", 8090), "http://host-a:8080")
B = Member("b", Address("::1", 8091), "http://[::1]:8081")
C = Member("c", Address("10.0.0.3", 65_535), "https://zürich.example.com")
PLAN = bytes.fromhex(
    "122c122a0a1552130a11313820616c7320c39c626572736368c3a413220a0a066d61696e2e7510012802"
)
"""Stands for a plan; its content does not matter to the log."""
MESSAGES: dict[str, Message] = {
    "operation_sql": INSERT,
    "operation_rows": replace(
        INSERT, kind=Kind.ROWS, insert=None, write=ArrowRows("main.air.flüge", b"a stream")
    ),
    "operation_unknown_tables": DDL,
    "operation_since": replace(INSERT, since=2**40, window=65_536),
    "operation_budget": replace(INSERT, since=2**40, window=65_536, apply_budget_s=2.5),
    "operation_rests_on": replace(
        DDL,
        since=41,
        window=65_536,
        analyzed_to=2**40,
        rests_on=frozenset({"main.air.flüge", "main.air.a"}),
        redefines=None,
    ),
    "operation_redefines": replace(
        INSERT,
        insert=None,
        since=41,
        window=65_536,
        analyzed_to=0,
        redefines=frozenset({"main.air.flüge"}),
    ),
    "operation_computed": replace(
        INSERT,
        write=QueryWrite("INSERT INTO flüge SELECT 'Zürich 😀', uuid()", 18, of_session=True),
        insert=None,
        since=41,
        window=65_536,
    ),
    "operation_computed_in_session": replace(
        INSERT,
        write=QueryWrite(
            "INSERT INTO flüge SELECT * FROM v", 18, True, SessionRef("ann", "s-1", 3, "b-7f3e")
        ),
        insert=None,
        since=41,
        window=65_536,
    ),
    "operation_plan": replace(
        INSERT,
        write=SparkPlan(PLAN),
        insert=None,
        since=41,
        window=65_536,
        analyzed_to=2**40,
        rests_on=frozenset({"main.air.flüge"}),
    ),
    "rows_failure": Rows(41, ID, "b", 12, failure=FAILURE),
    "operation_computed_plan": replace(
        INSERT,
        write=ComputedPlan(b"relation", PLAN, SessionRef("ada", "s-1", 3, "b-7f3e")),
        insert=None,
        since=41,
        window=65_536,
    ),
    "operation_computed_plan_alone": replace(
        INSERT,
        write=ComputedPlan(b"relation", PLAN),
        insert=None,
        since=41,
        window=65_536,
    ),
    "operation_computed_under_settings": replace(
        INSERT,
        write=QueryWrite(
            "INSERT INTO flüge SELECT size(NULL)", 18, confs=(("spark.sql.legacy.a", "ü"),)
        ),
        insert=None,
        since=41,
        window=65_536,
    ),
    "operation_computed_plan_under_settings": replace(
        INSERT,
        write=ComputedPlan(
            b"relation", PLAN, SessionRef("ada", "s-1", 3, "b-7f3e"), (("a", "1"), ("b", ""))
        ),
        insert=None,
        since=41,
        window=65_536,
    ),
    "operation_spooled": replace(
        INSERT,
        write=SpooledRows("c.s.t", b"no rows"),
        insert=None,
        since=41,
        window=65_536,
    ),
    "rows_filling": Rows(41, ID, "b", 12, 2, None, Filling(PLAN, b"rows", (), 4)),
    "rows_parts": Rows(41, ID, "b", 12, 2**40, None, Filling(PLAN, b"", (43, 2**40), 2**44)),
    "part": Part(41, ID, "b", 12, 1, 1_790_000_000_456, b"\x00rows"),
    "passed": Passed(41, ID, "b", 12, FAILURE),
    "decision_commit": Decision(41, ID, DecisionKind.COMMIT, "b", 12),
    "decision_reject": Decision(41, ID, DecisionKind.REJECT, "a", 7, FAILURE),
    "outcome": FailureReport(2**53 + 1, "c", 3, FAILURE),
    "claim": Claim("a", "a-7f3e"),
    "unable": FailureVote(41, ID, "b", 12, "OOM: für »flüge« reicht es nicht 😀"),
    "able": VoteWithdrawal(41, ID, "b", 12),
    "abandon": Abandon(41, ID, "c", 13, 47, {"b": 44, "c": 46}, {"a": 7, "d": -1}, "b: OOM 😀"),
    "revoke": Revoke(41, ID, "b", 12, "ein Mensch: »flüge« dauert 😀"),
    "unable_revoke": FailureVote(41, ID, "b", 12, "it is to be taken back", 43),
    "able_revoke": VoteWithdrawal(41, ID, "b", 12, 43, True),
    "abandon_revoke": Abandon(
        41, ID, "c", 13, 47, {"b": 44, "c": 46}, {}, "ein Mensch 😀", revoked=True
    ),
    "fence": Fence("job/4711"),
    "copy": Copy("d", "a", 12),
    "copy_with_spare": Copy("d", "a", 12, spare="zürich"),
    "copy_of_tables": Copy("d", "a", 12, ("main.flüge", "main.air")),
    "copy_of_tables_ahead": Copy("d", "a", 12, ("main.flüge",), ahead=True),
    "skip": Skip(41, ID, "c", 12, "Platte »c« ist kaputt 😀"),
    "verify": Verify("b"),
    "verify_trusted": Verify("b", "c"),
    "checksums": Checksums(
        43, "c", 12, {"main.air.flüge": "3:00ff:12ab", "main.air.b": "", "v": "view:77"}, True
    ),
    "join": Roster(Change.JOIN, "c", (A, B, C), 44, "a"),
    "leave": Roster(Change.LEAVE, "b", (A, C), 45, "a"),
    "members": Roster(Change.MEMBERS, "", (A,), -1, "a"),
    "checksums_error": Checksums(43, "a", 7, {}, error="die Tabellen lassen sich nicht auflisten"),
}


VIEW = Effect("view flüge", settings=INSERT.settings, columns=(("id", "int"), ("ü", "string")))
STORED: dict[str, Written | Adoption | Submission | Event] = {
    "adoption": Adoption(2, "a-2", "b", "a-1", True, 1_790_000_000_456),
    "entry_state": Written(StateEntry(INSERT.settings, (("haproc.consistency", "any"),))),
    "entry_sql": Written(SqlEntry("CREATE TEMP VIEW flüge AS SELECT 1", VIEW), ("r1", "r2"), 3),
    "entry_plan": Written(PlanEntry(PLAN, Effect("function f", True))),
    "entry_variables": Written(
        VariablesEntry((Variable("a", "int", b"one row", "7"), Variable("ü", "string", b"")))
    ),
    "entry_artifact": Written(ArtifactEntry("pyfiles/ü.py", ("00ff", "12ab"), 2**40)),
    "job_asked": Submission(
        user="ada",
        request_id="r1",
        name=None,
        args=("--tag", "ü"),
        confs=(("a", "1"),),
        options=(("b", ""),),
        environment=(("C", "c"),),
        files=(
            JobFile(FileRole.PROGRAM, "p.py", 3, "00ff"),
            JobFile(FileRole.DATA, "ü.csv", 2**40, "12"),
        ),
        limits=JobLimits(2**33, 3600.0, 0.5),
        restarts=2,
        fingerprint="c0ffee",
        proxy_user="bob",
        stored="s",
        cluster="a",
        incarnation="a-7f3e",
        at_ms=1_790_000_000_123,
    ),
    "job_granted": GrantedSubmission(
        user="ada@example.com",
        request_id="r1",
        name=None,
        args=(),
        confs=(),
        options=(),
        environment=(),
        files=(JobFile(FileRole.PROGRAM, "p.py", 3, "00ff"),),
        limits=JobLimits(2**33, 3600.0, 0.5),
        restarts=2,
        fingerprint="c0ffee",
        rights=Rights((Role.WRITER, Role.OPERATOR), ("spark_catalog.flüge.*",)),
    ),
    "job_attempt": JobAttempt(1, "x", "a", "a-7f3e", "00ff", "w", 41, 1_790_000_000_123),
    "job_ending": Ending("x", Outcome.LOST, None, "»a« ist fort", 1_790_000_000_456),
    "job_kill": Kill("ann", 5),
    "job_fenced": Fenced(6),
}


def kinds_of(name: str) -> Kinds[Any]:
    """Return the set of kinds that a message belongs to."""
    if name in MESSAGES:
        return KINDS
    return JOBS if name.startswith("job_") else SESSIONS


def kept(name: str) -> Path:
    """Return the file of a message's bytes."""
    return GOLDEN / f"{name}.bin"


if __name__ == "__main__":
    for name, message in (MESSAGES | STORED).items():
        if not kept(name).exists():
            kept(name).write_bytes(kinds_of(name).to_bytes(message))
