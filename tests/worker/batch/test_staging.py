"""Arrays arrive as they are, aligned, in one copy, which later packing does not touch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fakes.device_watch import DeviceWatch, torch_raises_on_waits
from worker.batch.staging import ALIGNMENT, Parcel, Staging, to_device

CPU, META = torch.device("cpu"), torch.device("meta")

arrays = st.sampled_from([np.int32, np.int64, np.uint64, np.float32]).flatmap(
    lambda dtype: hnp.arrays(dtype, st.integers(0, 50), elements=st.integers(0, 1000))
)
parcels = st.lists(st.lists(arrays, max_size=4), min_size=1, max_size=4)


def check(parcel: Parcel) -> None:
    for array, tensor in zip(parcel.arrays, parcel.tensors, strict=True):
        assert tensor.data_ptr() % ALIGNMENT == 0 or len(array) == 0
        assert tensor.tolist() == array.tolist()
        assert tensor.dtype.itemsize == (parcel.dtype or array.dtype).itemsize


@settings(deadline=None)
@given(parcels, parcels)
def test_every_tensor_is_its_array(
    first: list[list[npt.NDArray[np.generic]]], second: list[list[npt.NDArray[np.generic]]]
) -> None:
    staging = Staging(CPU, 64)
    for step in (first, second):
        sent = [Parcel(*group) for group in step]
        staging.send(*sent)
        for parcel in sent:
            check(parcel)


def test_a_parcel_may_say_what_it_becomes() -> None:
    parcel = Parcel(np.arange(5), np.arange(9)[::2], dtype=np.int32)
    Staging(CPU).send(parcel)
    check(parcel)
    assert {tensor.dtype for tensor in parcel.tensors} == {torch.int32}


def test_on_the_cpu_nothing_is_copied() -> None:
    parcel = Parcel(np.arange(5), np.arange(4, dtype=np.float32))
    with DeviceWatch() as watch:
        Staging(CPU).send(parcel)
    assert not watch.sources
    assert len({tensor.untyped_storage().data_ptr() for tensor in parcel.tensors}) == 1


def test_all_that_is_sent_together_goes_in_one_copy() -> None:
    staging = Staging(META)
    with DeviceWatch() as watch:
        staging.send(Parcel(np.arange(7), np.arange(3, dtype=np.int32)), Parcel(), Parcel(np.arange(100)))
    assert [len(source) for source in watch.sources] == [64 + 16 + 800]
    assert not watch.waits


def test_packing_leaves_alone_what_may_be_on_its_way() -> None:
    staging = Staging(META)
    with DeviceWatch() as watch:
        for value in (1, 2, 3):
            staging.send(Parcel(np.full(4, value)))
    first, second, third = (source.view(torch.int64) for source in watch.sources)
    assert first.data_ptr() != second.data_ptr()
    assert third.data_ptr() == first.data_ptr()
    assert second.tolist() == [2] * 4


def test_a_buffer_that_grew_holds_what_was_sent() -> None:
    staging = Staging(CPU, 16)
    parcel = Parcel(np.arange(1000))
    staging.send(parcel)
    check(parcel)


def test_without_growing_addresses_stay_and_too_much_is_refused() -> None:
    staging = Staging(CPU, 128, can_grow=False)
    addresses = set()
    for value in range(5):
        parcel = Parcel(np.full(8, value), np.arange(value))
        staging.send(parcel)
        addresses.add(parcel.tensors[0].data_ptr())
    assert len(addresses) == 1
    large = Parcel(np.arange(17))
    assert not staging.fits(large)
    with pytest.raises(ValueError, match="136 bytes do not fit a buffer of 128"):
        staging.send(large)


def test_tensors_before_sending_are_refused() -> None:
    with pytest.raises(RuntimeError, match="has not been sent"):
        _ = Parcel(np.arange(3)).tensors


@pytest.mark.gpu
def test_on_a_cuda_device_steps_do_not_disturb_each_other() -> None:
    staging, kept = Staging(torch.device("cuda"), 1 << 20), []
    with torch_raises_on_waits():
        for value in range(50):
            parcel = Parcel(np.full(1 << 16, value))
            staging.send(parcel)
            kept.append(parcel.tensors[0].clone())
    assert [bool((tensor == value).all()) for value, tensor in enumerate(kept)] == [True] * 50


def test_an_array_that_nobody_may_write_goes_too() -> None:
    array = np.arange(4)
    array.flags.writeable = False
    assert to_device(array, CPU).tolist() == [0, 1, 2, 3]
