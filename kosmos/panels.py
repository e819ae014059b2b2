"""The policy panel: choose an op, a shape, who works and in which order; run; see the timeline and all runs so far.

It runs on a World (a GPU or the emulator), on the simulator, or on any function from a Setting to a Trace. Without a
browser it is the same thing called from Python: `panel.run(policy="fixed:4").summary()`.
"""

import html
import io
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kosmos.errors import KosmosArgumentError, KosmosEnvironmentError, KosmosError, KosmosShapeError
from kosmos.machine import machine_named, machines
from kosmos.schedule import Policy, all_gather_matmul, matmul_reduce_scatter
from kosmos.schedule.policies import KINDS
from kosmos.trace import ROLES, Trace
from kosmos.trace.metrics import microseconds

if TYPE_CHECKING:
    from kosmos.world import World

ORDERS = {"all_gather_matmul": all_gather_matmul.ORDERS, "matmul_reduce_scatter": matmul_reduce_scatter.ORDERS}
"""The orders of each op by name; the first is the default."""

PLACES = ("gpu", "emulator", "simulator")

DTYPES = ("bf16", "fp16", "fp32", "fp8")
"""fp32 is for worlds, fp8 for the simulator."""

SIZES = {"emulator": (1024, 512, 256), "gpu": (8192, 8192, 2048), "simulator": (8192, 8192, 2048)}
"""m, n and k where none are given: a second's work in the emulator, some milliseconds' on a GPU."""

Order = str | Callable[..., Any]
PolicyFunction = Callable[..., Any]


@dataclass(frozen=True)
class Setting:
    """One run. m, n, k are the GEMM that each rank runs: after the gather, or before the scatter."""

    op: str
    m: int
    n: int
    k: int
    ranks: int
    workgroups: int | None  # of a rank; None is all that there are
    policy: Policy | PolicyFunction | None  # None is the op's default; a function is for the simulator
    order: Order | None  # None is the op's default
    link_gbps: float | None  # None is as fast as they go
    machine: str | None  # None is the place's default
    dtype: str
    seed: int  # of the operands
    place: str

    def __post_init__(self) -> None:
        if not isinstance(self.op, str) or self.op not in ORDERS:
            raise KosmosArgumentError(f"op={self.op!r} is unknown; allowed are {', '.join(ORDERS)}")
        if self.place not in PLACES:
            raise KosmosArgumentError(f"place={self.place!r} is unknown; allowed are {', '.join(PLACES)}")
        for name in ("m", "n", "k", "ranks", "workgroups"):
            value = getattr(self, name)
            if name == "workgroups" and value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise KosmosShapeError(f"{name}={value!r} must be a whole number, 1 or more")
        if self.dtype not in DTYPES:
            raise KosmosArgumentError(f"dtype={self.dtype!r} is unknown; allowed are {', '.join(DTYPES)}")
        if not isinstance(self.seed, int) or isinstance(self.seed, bool) or self.seed < 0:
            raise KosmosArgumentError(f"seed={self.seed!r} must be a whole number, 0 or more")
        if self.m % self.ranks:
            raise KosmosShapeError(f"m={self.m} must divide by ranks={self.ranks}")
        if self.machine is not None:
            machine_named(self.machine)


Runner = Callable[[Setting], Trace]


def panel(world: "World | None" = None, *, run: Runner | None = None, **setting: Any) -> "Panel":
    """A Panel, which a notebook shows as controls, a timeline and a table of the runs so far.

    world: where to run; ranks, workgroups, machine and links are then its own. Without it `place` says where: "gpu",
    "emulator" or "simulator"; None is a GPU if there is one, else the emulator, else (without torch or Triton) the
    simulator. run: a function from a Setting to a Trace that is used instead. The other arguments are where the
    controls start, fields of a Setting: op, m, n, k, ranks, workgroups, policy (text, a Policy, or for the simulator a
    function), order (a name or a function), link_gbps, machine, dtype ("bf16", "fp16", in a world "fp32", in the
    simulator "fp8"), seed.

    Raises KosmosArgumentError or KosmosShapeError for values that are not allowed.
    """
    return Panel(world, run, setting)


class Panel:
    """What `panel` makes. `setting` is what the next run is, `traces` are all so far, `table` says how they went."""

    def __init__(self, world: "World | None", run: Runner | None, setting: Mapping[str, Any]) -> None:
        _refuse_unknown(setting)
        if world is not None and not _is_world(world):
            raise KosmosArgumentError(f"world={world!r} must be a kosmos.World, or None")
        if run is not None and not callable(run):
            raise KosmosArgumentError(f"run={run!r} must be a function from a Setting to a Trace, or None")
        self.world = world
        self._run = run or Executor(world).run
        place = self._of_world().get("place", setting.get("place"))
        if place is None:
            place = "simulator" if run else _place()
        m, n, k = SIZES[place] if place in PLACES else SIZES["simulator"]
        start: dict[str, Any] = {"op": "matmul_reduce_scatter", "m": m, "n": n, "k": k, "ranks": 4, "dtype": "bf16"}
        start |= dict.fromkeys(("workgroups", "policy", "order", "link_gbps", "machine")) | {"seed": 0}
        self._refuse_of_world(setting)
        self.setting = Setting(**start | _parsed(setting) | {"place": place} | self._of_world())
        self.traces: list[Trace] = []
        self._settings: list[Setting] = []
        self._controls: Any = None

    def _of_world(self) -> dict[str, Any]:
        if self.world is None:
            return {}
        return {
            "place": "emulator" if self.world.emulated else "gpu",
            "ranks": self.world.ranks,
            "workgroups": self.world.workgroups,
            "link_gbps": self.world.link_gbps,
            "machine": self.world.machine.name if self.world.machine.name in machines else None,
        }

    def _refuse_of_world(self, changes: Mapping[str, Any]) -> None:
        for name, value in self._of_world().items():
            if changes.get(name) is not None and changes[name] != value:
                raise KosmosArgumentError(
                    f"{name}={changes[name]!r} is not that of the panel's world, which is {value!r}"
                )

    def run(self, **changes: Any) -> Trace:
        """Run the setting, with these changes to it from now on, and keep the trace.

        Raises KosmosError for a setting that is not allowed or fails; nothing has changed then.
        """
        _refuse_unknown(changes)
        self._refuse_of_world(changes)
        setting = replace(self.setting, **_parsed(changes))
        trace = self._run(setting)
        if not isinstance(trace, Trace):
            raise KosmosArgumentError(f"run must return a kosmos.Trace, not {trace!r:.80}")
        self.setting = setting
        self._settings.append(setting)
        self.traces.append(trace)
        if self._controls:
            self._controls.show()
        return trace

    @property
    def table(self) -> pa.Table:
        """The runs so far, a row each: what ran, makespan_ns, and the share (0 to 1) of every role, wait and idle."""
        summaries = [trace.summary() for trace in self.traces]
        kinds = [kind for kind in (*ROLES, "wait", "idle") if any(kind in summary for summary in summaries)]
        columns: dict[str, list[Any]] = {"run": list(range(1, len(self.traces) + 1))}
        for name in ("op", "m", "n", "k", "ranks"):
            columns[name] = [getattr(setting, name) for setting in self._settings]
        columns["workgroups"] = [trace.workgroups for trace in self.traces]
        for name in ("policy", "order"):  # as they were settled
            columns[name] = [str(trace.meta.get(name) or "") for trace in self.traces]
        columns["link_gbps"] = [setting.link_gbps for setting in self._settings]
        columns["place"] = [setting.place for setting in self._settings]
        columns["machine"] = [str(trace.meta.get("machine") or "") for trace in self.traces]
        columns["makespan_ns"] = [summary["makespan_ns"] for summary in summaries]
        types = {"run": pa.int64(), "makespan_ns": pa.int64(), "link_gbps": pa.float64(), "workgroups": pa.int64()}
        types |= dict.fromkeys(("m", "n", "k", "ranks"), pa.int64())
        arrays = {name: pa.array(values, types.get(name, pa.string())) for name, values in columns.items()}
        for kind in kinds:
            arrays[kind] = pa.array([summary.get(kind) for summary in summaries], pa.float64())
        return pa.table(arrays)

    @property
    def widget(self) -> Any:
        """The ipywidgets box. Raises KosmosEnvironmentError without ipywidgets."""
        if self._controls is None:
            self._controls = Controls(self)
        return self._controls.box

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self.widget._repr_mimebundle_(**options)

    def __repr__(self) -> str:
        return f"<Panel: {self.setting.op} in the {self.setting.place}, {len(self.traces)} runs>"


def _place() -> str:
    try:
        import torch

        if torch.cuda.is_available():
            return "gpu"
        import greenlet  # noqa: F401
        import triton  # noqa: F401
    except ImportError:
        return "simulator"
    return "emulator"


def _is_world(world: Any) -> bool:
    # whoever has one has imported its module, which needs torch
    module = sys.modules.get("kosmos.world")
    return module is not None and isinstance(world, module.World)


def _refuse_unknown(setting: Mapping[str, Any]) -> None:
    known = [field.name for field in fields(Setting)]
    unknown = [name for name in setting if name not in known]
    if unknown:
        raise KosmosArgumentError(f"panel: {unknown[0]!r} is no setting; settings are {', '.join(known)}")


def _parsed(setting: Mapping[str, Any]) -> dict[str, Any]:
    """The setting with its policy as one."""
    given = dict(setting)
    if given.get("policy") is not None and not callable(given["policy"]):
        given["policy"] = Policy.parse(given["policy"])
    return given


class Controls:
    """The panel in a page: what is chosen above, the picture and the table of the runs below."""

    def __init__(self, panel: Panel) -> None:
        try:
            import ipywidgets
        except ImportError:
            raise KosmosEnvironmentError(
                "the panel is made of widgets and needs ipywidgets, which is not installed here: "
                "pip install 'kosmos[lab]'; panel.run() works without it"
            ) from None
        self._panel, self._widgets = panel, ipywidgets
        setting = panel.setting
        wide, narrow = ipywidgets.Layout(width="19em"), ipywidgets.Layout(width="13em")
        label = {"description_width": "6.5em"}

        def number(name: str, value: int, least: int = 1) -> Any:
            limits = {"min": least, "max": 2**31 - 1}
            return ipywidgets.BoundedIntText(value, description=name, layout=narrow, style=label, **limits)

        def choice(name: str, options: Any, value: Any, layout: Any = wide) -> Any:
            return ipywidgets.Dropdown(options=options, value=value, description=name, layout=layout, style=label)

        kind, crew = "default", 0
        if isinstance(setting.policy, Policy):
            kind, crew = setting.policy.kind, setting.policy.crew or 0
        self._own_policies = _by_name(setting.policy)
        self._own_orders = _by_name(setting.order)
        self.op = choice("op", list(ORDERS), setting.op)
        self.m, self.n, self.k = (number(name, getattr(setting, name)) for name in "mnk")
        self.ranks = number("ranks", setting.ranks)
        self.workgroups = number("workgroups", setting.workgroups or 0, least=0)
        self.policy = choice("policy", ["default", *KINDS, *self._own_policies], next(iter(self._own_policies), kind))
        self.crew = number("crew", crew, least=0)
        self.order = choice("order", *self._orders(setting))
        self.link = ipywidgets.BoundedFloatText(
            setting.link_gbps or 0, min=0, max=1e6, description="link GB/s", layout=narrow, style=label
        )
        self.place = choice("place", PLACES, setting.place)
        names = [*dict.fromkeys(["default", *machines, setting.machine or "default"])]
        self.machine = choice("machine", names, setting.machine or "default")
        self.shown = choice("show", ["this run", "this and the one before", "all runs"], "this run")
        self.button = ipywidgets.Button(description="Run", icon="play", button_style="primary", layout=narrow)
        self.message = ipywidgets.HTML()
        self.picture = ipywidgets.VBox()
        self.runs = ipywidgets.HTML()

        for name in panel._of_world():
            getattr(self, "link" if name == "link_gbps" else name).disabled = True
        self.workgroups.tooltip = self.link.tooltip = "0: as many, as fast as there are"
        self.op.observe(self._op_changed, "value")
        self.policy.observe(self._policy_changed, "value")
        self.shown.observe(lambda _: self.show(), "value")
        self.button.on_click(lambda _: self._pressed())
        self._policy_changed()
        rows = [
            [self.op, self.m, self.n, self.k],
            [self.place, self.machine, self.ranks, self.workgroups, self.link],
            [self.policy, self.crew, self.order, self.shown, self.button],
        ]
        flow = ipywidgets.Layout(flex_flow="row wrap")
        boxes = [ipywidgets.HBox(row, layout=flow) for row in rows]
        self.box = ipywidgets.VBox([*boxes, self.message, self.picture, self.runs])
        self.show()

    def _orders(self, setting: Setting) -> tuple[list[str], str]:
        """The names to choose from, and the chosen one."""
        names = [*ORDERS[setting.op], *self._own_orders]
        chosen = setting.order.__name__ if callable(setting.order) else setting.order or names[0]
        return ([*names, chosen] if chosen not in names else names), chosen

    def _op_changed(self, _: Any) -> None:
        self.order.options = [*ORDERS[self.op.value], *self._own_orders]
        self.order.value = self.order.options[0]

    def _policy_changed(self, _: Any = None) -> None:
        self.crew.disabled = self.policy.value in ("default", "planned", *self._own_policies)

    def chosen(self) -> dict[str, Any]:
        """The setting that the controls show."""
        kind = self.policy.value
        policy = self._own_policies.get(kind)
        if kind in KINDS:
            policy = Policy(kind, None if kind == "planned" else self.crew.value)
        chosen = {name: getattr(self, name).value for name in ("op", "m", "n", "k", "ranks", "place")}
        chosen |= {"workgroups": self.workgroups.value or None, "link_gbps": self.link.value or None}
        chosen |= {"machine": None if self.machine.value == "default" else self.machine.value}
        chosen |= {"policy": policy, "order": self._own_orders.get(self.order.value, self.order.value)}
        return {name: value for name, value in chosen.items() if name not in self._panel._of_world()}

    def _pressed(self) -> None:
        self.button.disabled, self.button.description = True, "Running …"
        self.message.value = ""
        try:
            self._panel.run(**self.chosen())
        except Exception as error:  # where nobody would see a traceback
            says = str(error) if isinstance(error, KosmosError) else f"{type(error).__name__}: {error}"
            says = html.escape(" ".join(says.split()))
            self.message.value = f"<b role='alert' style='color:var(--jp-error-color1)'>{says}</b>"
        finally:
            self.button.disabled, self.button.description = False, "Run"

    def show(self) -> None:
        """The runs as they are now."""
        count = {"this run": 1, "this and the one before": 2, "all runs": len(self._panel.traces)}[self.shown.value]
        traces = self._panel.traces[-count:] if count else []
        before = self.picture.children
        if traces:
            first = len(self._panel.traces) - len(traces) + 1
            self.picture.children = [self._drawn(traces, [f"run {first + at}" for at in range(len(traces))])]
        for picture in before:
            picture.close()
        self.runs.value = _as_html(self._panel.table) if self._panel.traces else ""

    def _drawn(self, traces: list[Trace], titles: list[str]) -> Any:
        """The viewer, or plots where there is none."""
        import kosmos

        try:
            return traces[0].view(title=titles[0]) if len(traces) == 1 else kosmos.compare(*traces, titles=titles)
        except KosmosEnvironmentError:
            plots = [trace.plot(title=title) for trace, title in zip(traces, titles, strict=True)]
            return self._widgets.VBox([self._widgets.Image(value=_png(plot), width=900) for plot in plots])


def _by_name(choice: Any) -> dict[str, Any]:
    """A function under its name; nothing for what is none."""
    return {choice.__name__: choice} if callable(choice) else {}


def _png(figure: Any) -> bytes:
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=180)
    return picture.getvalue()


def _as_html(table: pa.Table) -> str:
    """The runs as a person compares them: the same in all of them is left out, the fastest is bold."""
    rows = table.to_pylist()
    best = min(row["makespan_ns"] for row in rows)
    names = [name for name in table.column_names if name not in ("run", "makespan_ns")]
    facts = [name for name in names if name not in (*ROLES, "wait", "idle")]
    facts = [name for name in facts if name in ("policy", "order") or len({row[name] for row in rows}) > 1]
    shares = [name for name in names if name in (*ROLES, "wait", "idle")]
    head = ["run", *facts, "makespan", "of the best", *shares]
    lines = []
    for row in rows:
        cells = [str(row["run"]), *("" if row[name] is None else f"{row[name]}" for name in facts)]
        cells += [microseconds(row["makespan_ns"]), f"{row['makespan_ns'] / best:.2f}×" if best else ""]
        cells += ["" if row[name] is None else f"{row[name]:.1%}" for name in shares]
        style = "font-weight:bold" if row["makespan_ns"] == best else ""
        lines.append(f"<tr style='{style}'>" + "".join(_cell("td", cell) for cell in cells) + "</tr>")
    header = "<tr>" + "".join(_cell("th", name) for name in head) + "</tr>"
    return f"<table style='border-spacing:1em 0'>{header}{''.join(lines)}</table>"


def _cell(tag: str, text: str) -> str:
    return f"<{tag} style='text-align:right'>{html.escape(text)}</{tag}>"


class Executor:
    """Runs settings, in a world that it keeps while they ask for the same one, or in the simulator."""

    def __init__(self, world: "World | None" = None) -> None:
        self._world = world
        self._given = world is not None
        self._made_for: Any = None
        self._operands: Any = (None, ())

    def run(self, setting: Setting) -> Trace:
        return self._simulated(setting) if setting.place == "simulator" else self._executed(setting)

    def _simulated(self, setting: Setting) -> Trace:
        import kosmos

        asked = {name: getattr(setting, name) for name in ("policy", "order", "workgroups", "link_gbps", "machine")}
        options = {name: value for name, value in asked.items() if value is not None}
        shape = {name: getattr(setting, name) for name in ("m", "n", "k", "ranks", "dtype")}
        return kosmos.simulate(setting.op, **shape, **options)

    def _executed(self, setting: Setting) -> Trace:
        import torch

        import kosmos
        from kosmos.doctor.reference import operands

        world = self._world_of(setting)
        op = getattr(kosmos, setting.op)
        options = {name: getattr(setting, name) for name in ("policy", "order") if getattr(setting, name) is not None}
        dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
        if setting.dtype not in dtypes:
            raise KosmosArgumentError(f"dtype={setting.dtype!r} is unknown; allowed are {', '.join(dtypes)}")
        shape = (setting.op, setting.m, setting.n, setting.k, dtypes[setting.dtype], setting.seed)
        try:
            if self._operands[0] != shape:
                self._operands = (None, ())  # not the old ones and the new ones at once
                self._operands = (shape, operands(world, *shape))
            if not world.emulated:
                # compile, and wake the GPU up
                op(*self._operands[1], world=world, **options)
                world.synchronize()
            with kosmos.record() as run:
                op(*self._operands[1], world=world, **options)
            return run.trace
        except (RuntimeError, MemoryError) as failure:
            # on the CPU, torch says it in a sentence only
            full = isinstance(failure, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(failure)
            if not full or isinstance(failure, KosmosError):
                raise
            shape_text = f"m={setting.m}, n={setting.n}, k={setting.k} on {setting.ranks} ranks"
            raise KosmosEnvironmentError(f"{shape_text} do not fit the memory") from None

    def _world_of(self, setting: Setting) -> "World":
        import kosmos

        asked = (setting.ranks, setting.workgroups, setting.machine, setting.link_gbps, setting.place)
        if self._world is None or not (self._given or asked == self._made_for):
            device = "cpu" if setting.place == "emulator" else "cuda"
            self._world = kosmos.World.virtual(
                setting.ranks, setting.workgroups, device, setting.machine, setting.link_gbps
            )
            self._made_for, self._operands = asked, (None, ())
        return self._world
