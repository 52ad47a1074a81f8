"""Programs between the hosts that this machine plays (tests/hosts), as jobs of ferry.bench.measure."""

import os
import sys
from pathlib import Path

from ferry.bench.measure import Job
from ferry.bench.programs import OPEN_MPI_AS_ROOT, TUNED, options_of, rank_command
from ferry.bench.work import Shape

ROOT = Path(__file__).resolve().parent.parent
TOP_K, HIDDEN, EXPERTS = 8, 7168, 256
RATE, RATE_GB_S = "1gbit", 0.125


class Jobs:
    """Jobs of programs whose ranks are on the hosts of `bench`, `ranks` on each."""

    def __init__(self, options, bench, ranks):
        self.options, self.bench, self.ranks = options, bench, ranks
        self.hosts = ",".join(f"{name}:{ranks}" for name in bench.names)
        self.shape = options_of(tokens=options.tokens, hidden=HIDDEN, experts=EXPERTS, top_k=TOP_K,
                                iterations=options.iterations)

    def job(self, name, command, **environment):
        return Job("hosts", [self.options.tokens], name, command,
                   {**self.bench.environment, "GLOO_SOCKET_IFNAME": "eth0", **environment})

    def launch(self, *words):
        return [str(self.options.build / "tools/ferry"), "launch", "--hosts", self.hosts, "--no-tag", "--", *words]

    def ferry(self, name, *more, levels=""):
        levels = levels or f"host:{len(self.bench.names)}" + (f"@{RATE_GB_S}GB/s" if self.bench.rate else "")
        return self.job(name, self.launch(
            str(self.options.build / "tools/ferry"), "bench", "--mode", "environment", "--topology",
            f"{levels},rank:{self.ranks}", *self.shape, "--check", "--json", *more))

    def gloo(self):
        """Gloo in the usual torch pipeline, with settings of malloc that suit it."""
        shape = Shape(self.options.tokens, HIDDEN, self.ranks * len(self.bench.names), EXPERTS, TOP_K)
        rank = rank_command("gloo", shape, self.options.iterations, seed=1)
        return self.job("Gloo all_to_all", self.launch(sys.executable, *rank), **TUNED)

    def by_mpirun(self, name, *program, **more):
        """A program under mpirun on the first host, as on a cluster, by `btl tcp` between hosts. `more`: more settings
        of MCA."""
        settings = {"plm_rsh_agent": self.bench.environment["FERRY_SSH"], "pml": "ob1", "btl": "self,vader,tcp",
                    "btl_tcp_if_include": "eth0", "oob_tcp_if_include": "eth0", **more}
        words = ["mpirun", "--host", self.hosts, "--bind-to", "none", "--wdir", os.getcwd(),
                 *(word for name, value in settings.items() for word in ("--mca", name, value)), *program]
        return self.job(name, self.bench.command(self.bench.names[0], *words), **OPEN_MPI_AS_ROOT)

    def open_mpi(self, algorithm):
        return self.by_mpirun(f"Open MPI {algorithm}", str(self.options.build / "bench/mpi_bench"), "--algorithm",
                              algorithm, *self.shape, mpi_yield_when_idle="1")

    def collectives(self):
        """The collectives of ferry and of Open MPI in the same processes. The program prints a table."""
        return self.by_mpirun("collectives", str(self.options.build / "bench/mpi_collectives"), "--factor", "4",
                              "--rounds", str(self.options.rounds))
