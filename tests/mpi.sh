#!/bin/sh
# SPDX-License-Identifier: MIT
# librowfold_mpi on 1 to 4 ranks of this machine. make check sets MPIRUN; "no" where it is not there.
set -eu
program=tests/c/mpi_shards
if ! test -x "$program" || test "${MPIRUN:-no}" = no; then
    echo "skipped: needs MPI (--with-mpi) and mpirun"
    exit 77
fi
# mpirun is careful about root and about more ranks than processors; tests are not.
OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
OMPI_MCA_btl_vader_single_copy_mechanism=none
export OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM OMPI_MCA_rmaps_base_oversubscribe PRTE_MCA_rmaps_default_mapping_policy
export OMPI_MCA_btl_vader_single_copy_mechanism
# MPI itself keeps memory until the process ends.
ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0
export ASAN_OPTIONS
for ranks in 1 2 4; do
    "$MPIRUN" -n $ranks "$program" || { echo "$ranks ranks: failed"; exit 1; }
done
