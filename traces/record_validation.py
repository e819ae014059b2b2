"""Records the launches against which the simulator is validated: python traces/record_validation.py FOLDER

On a GPU, for both ops on 2, 4 and 8 virtual ranks: shapes, policies, crews, orders and paced links. Of the LAUNCHES
launches of a setting the one of median makespan is kept; the makespans of all are in its meta, as `makespans_ns`.
`--warm I N` only compiles: every N-th setting from the I-th on, so that N processes can share the work.
"""

import argparse
import time
from pathlib import Path

import kosmos
from kosmos.ops.launch import plan_for

LAUNCHES = 5
REST_S = 0.01  # between launches, so that each begins at a full clock

SHAPES = {
    "all_gather_matmul": [(8192, 2048, 8192), (8192, 1280, 4096), (4096, 4096, 4096)],
    "matmul_reduce_scatter": [(8192, 8192, 2048), (8192, 4096, 1792), (4096, 8192, 1024)],
}
OTHER_ORDER = {"all_gather_matmul": "rank", "matmul_reduce_scatter": "row"}


def settings() -> list[dict]:
    """What is recorded. `crew` in a policy: that of the default policy; `twice`: one more than twice that."""
    found = []

    def add(op, ranks, shape, policy, order=None, link_gbps=None):
        found.append(
            {"op": op, "ranks": ranks, "shape": shape, "policy": policy, "order": order, "link_gbps": link_gbps}
        )

    for op, shapes in SHAPES.items():
        for ranks in (2, 4, 8):
            for shape in shapes:
                for policy in ("one_way:{crew}", "fixed:{crew}", "fixed:{twice}"):
                    add(op, ranks, shape, policy)
            add(op, ranks, shapes[0], "fixed:{crew}", OTHER_ORDER[op])
            add(op, ranks, shapes[0], "one_way:{crew}", OTHER_ORDER[op])
            for link_gbps in (20, 60):
                add(op, ranks, shapes[0], "one_way:{twice}", None, link_gbps)
        add(op, 4, shapes[0], "two_way:{crew}")
        add(op, 4, shapes[0], "fixed:{crew}", "random:1")
        add(op, 4, shapes[1], "planned")
    return found


def launches(setting):
    """The name of a setting, and what launches it once and returns its trace."""
    m, n, k = setting["shape"]
    op, ranks = setting["op"], setting["ranks"]
    world = kosmos.World.virtual(ranks, link_gbps=setting["link_gbps"])
    x = world.randn(m // ranks if op == "all_gather_matmul" else m, k, seed=0)
    w = world.randn(n, k, seed=1)
    order = setting["order"] or {"all_gather_matmul": "local_first", "matmul_reduce_scatter": "band"}[op]
    crew = plan_for(world, op, m, n, k, x, w, None, order).policy.crew
    policy = setting["policy"].format(crew=crew, twice=2 * crew + 1)
    link = f"_{setting['link_gbps']}gbps" if setting["link_gbps"] else ""
    name = f"{op}_{ranks}ranks_{m}x{n}x{k}_{policy}_{order}{link}".replace(":", "")

    def launch():
        with kosmos.record() as run:
            getattr(kosmos, op)(x, w, world=world, policy=policy, order=order)
        return run.trace

    return name, launch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--warm", nargs=2, type=int, metavar=("I", "N"))
    given = parser.parse_args()
    chosen = settings()
    if given.warm:
        for setting in chosen[given.warm[0] :: given.warm[1]]:
            launches(setting)[1]()
        return
    given.folder.mkdir(parents=True, exist_ok=True)
    for setting in chosen:
        name, launch = launches(setting)
        launch()
        traces = []
        for _ in range(LAUNCHES):
            time.sleep(REST_S)
            traces.append(launch())
        traces.sort(key=lambda trace: trace.summary()["makespan_ns"])
        kept = traces[LAUNCHES // 2]
        kept.meta["makespans_ns"] = [trace.summary()["makespan_ns"] for trace in traces]
        kept.save(given.folder / f"{name}.parquet")
        problems = kept.problems()
        print(f"{name}  {kept.summary()['makespan_ns'] / 1e3:,.0f} µs{'  PROBLEMS' if problems else ''}", flush=True)


if __name__ == "__main__":
    main()
