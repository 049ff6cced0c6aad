"""Kernels by group, told by the names that libraries give them."""

import pytest

from lfhelpers.measure.kernels import group, grouped


@pytest.mark.parametrize(("name", "title"), [
    ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "communication"),
    ("nccldevkernel_allgather_ring_ll", "communication"),
    ("one_shot_all_reduce_kernel<float>", "communication"),
    ("volta_scudnn_128x64_relu_interior_nn_v1", "convolutions"),
    ("void cudnn::cnn::wgrad_alg0_engine<float, 512>", "convolutions"),
    ("Cijk_Alik_Bljk_SB_MT64x64x8", "matrix products"),
    ("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT", "matrix products"),
    ("void cudnn::bn_fw_tr_1C11_singleread<float, 512>", "pointwise, uncompiled"),
    ("triton_poi_fused_add_cos_sin_0", "compiled pointwise and reductions"),
    ("Memcpy HtoD (Pinned -> Device)", "copies and casts"),
    ("someone_elses_kernel", "other"),
])
def test_a_name_has_a_group(name, title):
    assert group(name) == title


def test_groups_are_summed_and_the_costliest_comes_first():
    rows = grouped([("sm90_gemm", 10.0), ("triton_a", 40.0), ("sm80_gemm", 20.0)])
    assert [(row.name, row.kernels, row.ms) for row in rows] == [
        ("compiled pointwise and reductions", 1, 0.04), ("matrix products", 2, 0.03)]
