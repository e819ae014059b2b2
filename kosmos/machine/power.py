"""Which clock a power cap allows. Plain arithmetic: the simulator compiles it, everybody else calls it."""

LEAST_SHARE = 0.05


def clock_share(budget_w: float, compute_w: float, exponent: float, stream_w: float) -> float:
    """The largest share x of the highest clock with compute_w * x**exponent + stream_w * x <= budget_w; at most 1.

    compute_w: what the busy units take at the highest clock; power grows with the clock times the square of a voltage
    that grows with the clock, hence an exponent above 1. stream_w: what their memory traffic takes there.
    Never below LEAST_SHARE: no cap stops a machine.
    """
    if compute_w + stream_w <= budget_w:
        return 1.0
    low = LEAST_SHARE
    if budget_w <= 0.0:
        return low
    x = 1.0
    # Newton's steps on an increasing convex function come down to the root from above
    for _ in range(40):
        power = x**exponent
        step = (compute_w * power + stream_w * x - budget_w) / (compute_w * exponent * power / x + stream_w)
        x -= step
        if x <= low:
            return low
        if step < 1e-9:
            break
    return x
