"""Code that runs right after a module was imported for the first time, by whoever imports it."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType


class AfterImport(importlib.abc.MetaPathFinder):
    """Finds nothing itself: it has the other finders find a watched module and runs the callback after it executed."""

    def __init__(self, callbacks: dict[str, Callable[[], None]]) -> None:
        self._callbacks = dict(callbacks)

    def install(self) -> None:
        """Modules that are imported already get their callback now; the others when they are imported."""
        for name in [name for name in self._callbacks if name in sys.modules]:
            self._callbacks.pop(name)()
        sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        callback = self._callbacks.pop(fullname, None)
        if callback is None:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _Loader(spec.loader, callback)
                return spec
        return None


class _Loader(importlib.abc.Loader):
    """The module's own loader, with a callback after the module executed. It takes itself out of the module again."""

    def __init__(self, loader: Any, callback: Callable[[], None]) -> None:
        self._loader = loader
        self._callback = callback

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._callback()
