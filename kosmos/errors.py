"""The errors of KOSMOS. Each carries one sentence that names what was given and what is allowed."""


class KosmosError(Exception):
    """Base of every error that KOSMOS raises on purpose."""


class KosmosArgumentError(KosmosError, ValueError):
    """An argument (policy, order, crew, machine, ...) has a value that is not allowed."""


class KosmosShapeError(KosmosArgumentError):
    """A tensor argument has a shape, dtype, device or layout that cannot be served."""


class KosmosDeadlock(KosmosError):
    """A (queues, policy) pair in which an item would wait for ever."""


class KosmosTimeout(KosmosError):
    """A wait on the device outlived its limit; the sentence says who waited for what."""


class KosmosTraceError(KosmosError, ValueError):
    """A trace, or a file that should hold one, is not what it should be."""


class KosmosEnvironmentError(KosmosError, RuntimeError):
    """Something that this operation needs (a GPU, a package, a version) is not here."""
