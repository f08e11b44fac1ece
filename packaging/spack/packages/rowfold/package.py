# SPDX-License-Identifier: MIT
"""Spack's recipe: spack repo add packaging/spack; spack install rowfold."""

import os

from spack.package import *

try:  # Spack 1.0 has what builds packages beside its own
    from spack_repo.builtin.build_systems.autotools import AutotoolsPackage
    from spack_repo.builtin.build_systems.cuda import CudaPackage
except ImportError:
    pass


class Rowfold(AutotoolsPackage, CudaPackage):
    """Linear layer, elementwise operators and row reduction as one fused operation, on CPUs and NVIDIA GPUs."""

    # The tarball of make dist, in the directory in which spack runs.
    manual_download = True
    url = f"file://{os.getcwd()}/rowfold-0.1.0.tar.xz"

    license("MIT")

    version("0.1.0")

    variant("python", default=True, description="The Python package and the command rowfold")
    variant("shared", default=True, description="The shared library")
    variant("static", default=False, description="The static library")

    depends_on("c", type="build")
    depends_on("cxx", type="build", when="+cuda")
    depends_on("gmake", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("jansson@2.11:")
    depends_on("cuda@12:", when="+cuda")

    with when("+python"):
        extends("python@3.9:")
        depends_on("py-numpy", type=("build", "run"))

    conflicts("~shared", when="+python", msg="The Python package loads the shared library")
    conflicts("~shared~static", msg="One of the libraries must be built")
    conflicts("cuda_arch=none", when="+cuda", msg="Say for which GPUs: cuda_arch=80, 90 or others")

    def configure_args(self):
        """Every dependency by name, so that nothing of the system is found by chance."""
        spec = self.spec
        args = self.enable_or_disable("shared") + self.enable_or_disable("static")
        args.append(f"PYTHON={spec['python'].command.path if spec.satisfies('+python') else ':'}")
        args.append("--with-mpi=no")
        if spec.satisfies("+cuda"):
            # compute_90a is for kernels of its own, beside those of 90.
            names = [f"sm_{arch}" for arch in spec.variants["cuda_arch"].value]
            names += ["sm_90"] if "sm_90a" in names and "sm_90" not in names else []
            names += ["sm_90a"] if "sm_90" in names and "sm_90a" not in names else []
            args += [f"--with-cuda={spec['cuda'].prefix}", f"--with-cuda-arch={','.join(names)}"]
        else:
            args.append("--with-cuda=no")
        return args
