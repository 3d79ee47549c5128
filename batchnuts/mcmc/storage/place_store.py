"""Places as stores of Zarr."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

from typing_extensions import override  # zarr requires it
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype

from batchnuts.mcmc.storage.place import METADATA, LocalPlace, Place


class PlaceStore(Store):
    """A place as a store of Zarr."""

    supports_writes: bool = True
    supports_deletes: bool = True
    supports_listing: bool = True

    def __init__(self, place: Place, *, read_only: bool = False) -> None:
        super().__init__(read_only=read_only)
        self.place = place

    @override
    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and str(other) == str(self)

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return str(self.place)

    @override
    def with_read_only(self, read_only: bool = False) -> PlaceStore:
        return PlaceStore(self.place, read_only=read_only)

    def _read(self, key: str, prototype: BufferPrototype | None, part: ByteRequest | None) -> Buffer | None:
        content = self.place.read(key)
        if content is None:
            return None
        return (prototype or default_buffer_prototype()).buffer.from_bytes(_part(content, part))

    def _write(self, key: str, value: Buffer) -> None:
        self._check_writable()
        self.place.put(key, value.as_buffer_like())

    @override
    async def get(
        self, key: str, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        return await asyncio.to_thread(self._read, key, prototype, byte_range)

    @override
    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        return list(await asyncio.gather(*(self.get(key, prototype, part) for key, part in key_ranges)))

    @override
    async def exists(self, key: str) -> bool:
        return await asyncio.to_thread(self.place.exists, key)

    @override
    async def set(self, key: str, value: Buffer) -> None:
        await asyncio.to_thread(self._write, key, value)

    @override
    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        if not await self.exists(key):
            await self.set(key, value)

    @override
    async def delete(self, key: str) -> None:
        self._check_writable()
        await asyncio.to_thread(self.place.delete, [key])

    @override
    async def delete_dir(self, prefix: str) -> None:
        self._check_writable()
        await asyncio.to_thread(self.place.remove, prefix)

    @override
    async def list(self) -> AsyncIterator[str]:
        for key in await asyncio.to_thread(self.place.keys, ""):
            yield key

    @override
    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        for key in await asyncio.to_thread(self.place.keys, prefix.rstrip("/")):
            yield key

    @override
    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        start = f"{prefix.rstrip('/')}/" if prefix else ""
        keys = await asyncio.to_thread(self.place.keys, prefix.rstrip("/"))
        for name in {key.removeprefix(start).partition("/")[0] for key in keys}:
            yield name


class ChunkStore(PlaceStore):
    """The chunks that are at a place, with metadata in memory."""

    def __init__(self, place: Place, *, read_only: bool = False, other: ChunkStore | None = None) -> None:
        super().__init__(place, read_only=read_only)
        self.metadata: dict[str, bytes] = {} if other is None else other.metadata
        """Metadata by key."""
        self.written: set[str] = set() if other is None else other.written
        """Keys of chunks since it was emptied."""

    @override
    def with_read_only(self, read_only: bool = False) -> ChunkStore:
        return type(self)(self.place, read_only=read_only, other=self)

    @override
    def _read(self, key: str, prototype: BufferPrototype | None, part: ByteRequest | None) -> Buffer | None:
        if not _is_metadata(key):
            return super()._read(key, prototype, part)
        text = self.metadata.get(key)
        return None if text is None else (prototype or default_buffer_prototype()).buffer.from_bytes(text)

    @override
    def _write(self, key: str, value: Buffer) -> None:
        if _is_metadata(key):
            self.metadata[key] = value.to_bytes()
        else:
            super()._write(key, value)
            self.written.add(key)

    @override
    async def exists(self, key: str) -> bool:
        return key in self.metadata if _is_metadata(key) else await super().exists(key)

    @override
    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Lists groups and arrays that this process has made; there may be chunks of another one."""
        start = f"{prefix}/" if prefix else ""
        for name in {key.removeprefix(start).partition("/")[0] for key in self.metadata if key.startswith(start)}:
            yield name


class LocalChunkStore(ChunkStore):
    """The ChunkStore of a folder: Zarr reads and writes its files without a thread for each."""

    def get_sync(
        self, key: str, *, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Read a key, as zarr's SupportsGetSync asks for."""
        return self._read(key, prototype, byte_range)

    def set_sync(self, key: str, value: Buffer) -> None:
        """Write a key, as zarr's SupportsSetSync asks for."""
        self._write(key, value)

    def delete_sync(self, key: str) -> None:
        """Delete a key, as zarr's SupportsDeleteSync asks for."""
        self.place.delete([key])


def chunk_store(place: Place) -> ChunkStore:
    """A new ChunkStore for a place."""
    return LocalChunkStore(place) if isinstance(place, LocalPlace) else ChunkStore(place)


def _is_metadata(key: str) -> bool:
    return key.rpartition("/")[2] == METADATA


def _part(data: bytes, wanted: ByteRequest | None) -> Any:
    match wanted:
        case RangeByteRequest(start, end):
            return data[start:end]
        case OffsetByteRequest(offset):
            return data[offset:]
        case SuffixByteRequest(suffix):
            return data[max(0, len(data) - suffix) :]
    return data
