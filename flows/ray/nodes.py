"""The nodes of a Ray cluster: what each one has, and whether it is fit to compute a run.

A process on each node makes a report, which is compared with the driver's own.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from erl_pipeline.plan.fingerprint import package_fingerprint
from erl_pipeline.software import Software, software_differences, software_here
from storage.artifacts.layout import StagingFolder, StoreLayout, abandoned
from storage.errors import ConfigError, StoreError
from storage.filesystem import open_root, read_bytes, write_new

CLOCK_SECONDS = 10.0
"""How many seconds a node's clock may be off: times in manifests and ledgers come from several nodes."""
_KIND = "accelerator_type:"
"""Ray names a node's accelerator by a resource that begins so."""


@dataclass(frozen=True)
class ClusterNode:
    """A living node of the cluster, and its total resources. `address` is how messages name it; `gpu_kind` is
    what Ray calls its GPUs, such as `H100`, empty if it does not know."""

    id: str
    address: str
    cpus: float
    gpus: float
    memory_bytes: float
    gpu_kind: str = ""

    def __str__(self) -> str:
        return (
            f"{self.address} ({self.cpus:g} CPUs, {self.gpus:g} GPUs, {self.memory_bytes / 1e9:.1f} GB of "
            "memory)"
        )


def living_nodes() -> list[ClusterNode]:
    """The living nodes of the cluster, sorted by address."""
    import ray

    found = [
        ClusterNode(
            id=str(node["NodeID"]),
            address=str(node["NodeManagerAddress"]),
            cpus=node["Resources"].get("CPU", 0.0),
            gpus=node["Resources"].get("GPU", 0.0),
            memory_bytes=node["Resources"].get("memory", 0.0),
            gpu_kind=next(
                (name.removeprefix(_KIND) for name in node["Resources"] if name.startswith(_KIND)), ""
            ),
        )
        for node in ray.nodes()
        if node["Alive"]
    ]
    return sorted(found, key=lambda node: (node.address, node.id))


@dataclass(frozen=True)
class NodeQuestion:
    """What a node is asked.

    Args:
        packages: those whose code the run depends on.
        store_uri: the run's store; empty to check no store.
        sign: path, relative to the store, of a file that the driver wrote there.
        content: the content of that file, and of the node's file.
        answer: path, relative to the store, of the file that this node writes.
        held: name of a staging folder that the driver has locked; empty for a bucket.
    """

    packages: Sequence[str]
    store_uri: str
    sign: str
    content: bytes
    answer: str
    held: str = ""


@dataclass(frozen=True)
class NodeReport(Software):
    """What a node has.

    `plugins`: package -> fingerprint, empty if it is missing. `store`: the problem with the store, empty if
    there is none.
    """

    plugins: Mapping[str, str]
    store: str


def look(question: NodeQuestion) -> NodeReport:
    """Make a report on the node on which this is called."""
    return NodeReport(
        **vars(software_here()),
        plugins={package: _fingerprint(package) for package in question.packages},
        store=_store_problem(question) if question.store_uri else "",
    )


def _fingerprint(package: str) -> str:
    try:
        return package_fingerprint(package)
    except ConfigError:
        return ""


def _store_problem(question: NodeQuestion) -> str:
    """The problem with the store, empty if there is none: it must be the driver's, this node must be able to
    write and lock in it, and must see the driver's locks."""
    try:
        root = open_root(question.store_uri)
        # If the driver's file cannot be seen, this is another folder, and nothing is written to it.
        if read_bytes(root, root.join(question.sign)) != question.content:
            return "is not the one that the driver sees: a file that it wrote there cannot be found"
        staging = StoreLayout(root).staging
        StagingFolder(staging).release()
        if question.held and staging / question.held in abandoned(staging):
            return "does not share locks: one that the driver holds there cannot be seen from this node"
        write_new(root, root.join(question.answer), question.content)
    except StoreError as error:
        return f"cannot be used: {error}"
    return ""


def problems_of(report: NodeReport, here: NodeReport, clock_offset: float, store_uri: str) -> Iterator[str]:
    """The problems of a node; each text also says what to do.

    Args:
        here: the driver's own report.
        clock_offset: seconds by which the node's clock is ahead of the driver's.
    """
    yield from software_differences(report, here)
    for package, fingerprint in here.plugins.items():
        found = report.plugins[package]
        if not found:
            yield f"plug-in {package}, which the run uses, is missing: install it there"
        elif found != fingerprint:
            yield f"the code of plug-in {package} differs: install the same version on both"
    if report.store:
        yield (
            f"store {store_uri} {report.store}. Use a folder that every node mounts at the same path, or a "
            "bucket"
        )
    if abs(clock_offset) > CLOCK_SECONDS:
        yield f"its clock is {clock_offset:+.0f} s off: synchronise the clocks by NTP, such as with chrony"


@dataclass(frozen=True)
class NodeFinding:
    """What was found out about a node. `report` is None if it could not answer.

    `clock_offset`: seconds by which its clock is ahead of the driver's.
    """

    node: ClusterNode
    report: NodeReport | None
    clock_offset: float
    problems: tuple[str, ...]


def require_fit(findings: Iterable[NodeFinding], heading: str) -> None:
    """Raise ConfigError, which lists all problems below the heading, unless every node is fit."""
    wrong = [f"node {each.node.address}: {problem}" for each in findings for problem in each.problems]
    if wrong:
        raise ConfigError("\n  ".join([heading, *dict.fromkeys(wrong)]))


def processor_warning(findings: Iterable[NodeFinding]) -> str | None:
    """A warning if the nodes have different processors, which is no reason to refuse them; else None."""
    processors = {each.report.processor for each in findings if each.report is not None}
    if len(processors) < 2:
        return None
    return (
        f"the nodes have different processors ({', '.join(sorted(processors))}): artifacts are reproduced to "
        "the byte only on the same kind"
    )


def require_one_kind_of_gpu(nodes: Iterable[ClusterNode]) -> None:
    """Raise ConfigError if the nodes have several kinds of GPUs, on which bytes cannot be equal."""
    kinds = sorted({node.gpu_kind for node in nodes if node.gpus})
    if len(kinds) > 1:
        raise ConfigError(
            "resources.determinism: bytes cannot be kept on several kinds of GPUs, and the cluster has "
            f"{', '.join(kind or 'a kind that Ray does not know' for kind in kinds)}: use nodes of one kind"
        )
