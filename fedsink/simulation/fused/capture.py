"""A function of tensors in fixed places, recorded once as a CUDA graph and then replayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

# Calls before the recording: libraries choose their algorithms, the optimiser makes its state.
_EAGER_CALLS = 3


class Captured:
    """Calls a function; on a GPU its kernels are recorded after a few calls and replayed.

    The first calls are ordinary ones on a stream of their own, so none is lost. The function
    reads and writes tensors that stay where they are, draws from the given generators alone,
    never looks at a value from the host, and is not called any more once it is recorded.

    Args:
        function: what one call does.
        generators: CUDA generators that it draws from.
        enabled: False calls the function every time.
    """

    def __init__(
        self,
        function: Callable[[], None],
        generators: Sequence[torch.Generator] = (),
        *,
        enabled: bool,
    ) -> None:
        self._function = function
        self._generators = generators
        self._enabled = enabled
        self.forget()

    def forget(self) -> None:
        """Record anew, because tensors were replaced."""
        self._graph: torch.cuda.CUDAGraph | None = None
        self._eager = _EAGER_CALLS

    def __call__(self) -> None:
        """One call of the function, or one replay of what it launched."""
        if not self._enabled:
            self._function()
        elif self._eager:
            self._eager -= 1
            self._call_aside()
        else:
            if self._graph is None:
                self._graph = self._record()  # recording runs nothing
            self._graph.replay()

    def _call_aside(self) -> None:
        # Gradients are accumulated on the stream they were first computed on, and the default
        # stream cannot be recorded.
        present, aside = torch.cuda.current_stream(), torch.cuda.Stream()
        aside.wait_stream(present)
        with torch.cuda.stream(aside):
            self._function()
        present.wait_stream(aside)

    def _record(self) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        with torch.cuda.graph(graph):
            self._function()
        return graph
