#!/usr/bin/env python3
"""Several hosts on one machine, for tests and measurements between them: each has its own network, shared memory
(IPC and mount namespaces), processes and name; two are joined by a cable (veth pair), more by a switch (bridge), or
by one in each rack.

    hosts.py --hosts 2 [--rate 1gbit] [--loss 1] -- ferry launch --hosts a:4,b:4 -- program

runs a command beside hosts a, b, ..; `ferry launch` reaches them through FERRY_SSH, a stand-in for ssh that works
beside the hosts and on them. Needs root. Exit code 77: this machine does not allow it. As a module: class Hosts.
Calls unshare, nsenter, ip, tc; clang with --loss.

Nothing is left behind after any exit, SIGKILL included, because nothing has a name outside of the namespaces: a
host lives as long as its first process, which ends when the pipe from this process does, and takes all others of
the host with it."""

import argparse
import contextlib
import ctypes
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

SKIPPED = 77
NAMES = "abcdefgh"
SOCKET = "FERRY_TEST_HOSTS"  # the Unix socket of SshServer
BURST, LONGEST_QUEUE = "256kb", "50ms"
# The first process of a host. /dev/shm and /etc/hosts are its own. It ends when its input ends.
LIFE = ('hostname "$1" && mount -t tmpfs none /dev/shm && mount --bind "$2" /etc/hosts && ip link set lo up'
        ' && echo up && exec cat >/dev/null')
# Forwards packets for other hosts, by whichever cable they came: the ways there and back may differ.
PASS_ON = "cd /proc/sys/net/ipv4 && echo 1 > ip_forward && for one in conf/*/rp_filter; do echo 0 > $one; done"
# Drops packets that leave, with the probability THRESHOLD / 2^32; 7 is bpf_get_prandom_u32, 2 TC_ACT_SHOT.
LOSS = """
static unsigned (*random_bits)(void) = (void*)7;
__attribute__((section("tc"), used)) int drop(void* packet) { return random_bits() < THRESHOLDu ? 2 : 0; }
char _license[] __attribute__((section("license"), used)) = "GPL";
"""


class Unavailable(RuntimeError):
    """Why there are no hosts here."""


def address(index):
    return f"10.77.0.{index + 1}"


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        raise Unavailable(f"{shlex.join(words)}: {done.stderr.strip() or done.returncode}")


def clang():
    """Debian's clang-tools, which come with clang-tidy, have the version in the name."""
    return next((found for name in ("clang", "clang-14", "clang-19") if (found := shutil.which(name))), None)


def why_not(loss=0):
    """What this machine lacks; None when it lacks nothing."""
    missing = [tool for tool in ("unshare", "nsenter", "ip", "tc", "nft") if shutil.which(tool) is None]
    if loss and clang() is None:
        missing.append("clang, for loss")
    if missing:
        return f"not found: {', '.join(missing)}"
    return None if os.geteuid() == 0 else "only root may make network namespaces"


def skip_unless_possible():
    """For a test program: exits with the reason if hosts cannot be made here."""
    try:
        with Hosts(2):
            pass
    except Unavailable as reason:
        skip(reason)


def skip(reason):
    print(f"SKIPPED, no hosts on this machine: {reason}", file=sys.stderr)
    sys.exit(SKIPPED)


def die_with_parent():
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL


class Box:
    """A set of namespaces and the process that keeps them."""

    def __init__(self, name, hosts_file):
        # Hosts run since different times: the first one by days longer than the second.
        self.clock = Path("/proc/self/ns/time").exists()
        seconds = 86400 * 10 * max(ord("z") - ord(name[0]), 0)
        words = ["unshare", *(["--time", "--monotonic", str(seconds)] if self.clock else []), "--net", "--ipc", "--uts",
                 "--pid", "--mount", "--fork", "--kill-child", "--mount-proc", "sh", "-c", LIFE, "sh", name, hosts_file]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        preexec_fn=die_with_parent)
        if self.process.stdout.readline() != b"up\n":
            self.process.kill()
            words = self.process.communicate()[1].decode().strip()
            raise Unavailable(f"host {name}: {words or 'unshare ended'}")
        pid = self.process.pid
        self.pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text())

    def enter(self, *words):
        return ["nsenter", "-t", str(self.pid), "-n", "-i", "-u", "-p", "-m", *(["-T"] if self.clock else []), "--",
                *words]

    def in_network(self, *words):
        return ["nsenter", "-t", str(self.pid), "-n", *words]

    def ip(self, *words):
        run(*self.in_network("ip", *words))

    def tc(self, *words):
        run(*self.in_network("tc", *words))

    def close(self):
        self.process.communicate()  # closes its input, waits


class SshServer:
    """Runs command lines in shells of the hosts, with the streams of the process that asks. The hosts have files in
    common, so programs on them reach the server's Unix socket."""

    def __init__(self, boxes, path):
        self.boxes, self.path = boxes, str(path)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen(64)
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                client = self.listener.accept()[0]
            except OSError:  # closed
                return
            threading.Thread(target=self.answer, args=[client], daemon=True).start()

    def answer(self, client):
        with client:
            question, streams, _, _ = socket.recv_fds(client, 1 << 20, 3)
            host, line = json.loads(question)
            try:
                if host not in self.boxes:
                    return
                shell = subprocess.Popen(self.boxes[host].enter("sh", "-c", line), stdin=streams[0], stdout=streams[1],
                                         stderr=streams[2], start_new_session=True)
            finally:
                for stream in streams:
                    os.close(stream)
            code = shell.wait()
            with contextlib.suppress(OSError):  # who asked may have been killed
                client.sendall(str(code if code >= 0 else 255).encode())

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


def ssh(words):
    """As ssh: words[0] is the host, the others go to its shell; exit code 255: no such host, or it is gone."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(os.environ[SOCKET])
        socket.send_fds(server, [json.dumps([words[0], " ".join(words[1:])]).encode()], [0, 1, 2])
        code = server.recv(8)
    sys.exit(int(code or 255))


class Hosts:
    """`with Hosts(2, rate="1gbit") as hosts:` has hosts a and b, at address(0) and address(1). `rate` limits each
    direction of each host's cable; `loss` is the percentage of packets that are lost on the way out of each end.
    `racks` divides the hosts evenly, in order; `rack_rate` is the rate of the cable of each rack to the others.
    `cables`, such as {"ab": "1gbit", "bc": ""}, joins just these pairs, at these rates; packets to other hosts cross
    the fewest cables. With `cables`, cut() and firewall() do not work, and sent_bytes() does not count, since they use
    eth0 only."""

    def __init__(self, count, rate="", loss=0.0, mtu=9000, racks=1, rack_rate="", cables=None):
        if not 2 <= count <= len(NAMES):
            raise ValueError(f"{count} hosts: 2 to {len(NAMES)} are possible")
        if cables and (rate or racks > 1):
            raise ValueError("cables have their own rates, and no racks")
        if count % racks != 0 or (racks > 1 and count == 2):
            raise ValueError(f"{count} hosts in {racks} racks: as many in each, and more than 2")
        reason = why_not(loss)
        if reason:
            raise Unavailable(reason)
        self.names = list(NAMES[:count])
        self.rate, self.loss, self.mtu, self.racks, self.rack_rate = rate, loss, mtu, racks, rack_rate
        self.cables = cables or {}
        self.boxes = {}
        self.server = None
        self._folder = tempfile.TemporaryDirectory(prefix="ferry-hosts-")

    def __enter__(self):
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self.server:
            self.server.close()
        for box in self.boxes.values():
            box.close()
        self._folder.cleanup()

    def _make(self):
        table = Path(self._folder.name, "hosts")
        table.write_text("127.0.0.1 localhost\n" +
                         "".join(f"{address(i)} {name}\n" for i, name in enumerate(self.names)))
        for name in self.names if len(self.names) == 2 or self.cables else [*self.names, "switch"]:
            self.boxes[name] = Box(name, str(table))
        if self.cables:
            for (near, far), rate in self.cables.items():
                self._cable((near, f"to-{far}"), (far, f"to-{near}"), rate)
            for name in self.names:
                self._cable((name, "eth0"), (name, "inside"))  # its address, whatever cable leads there
        elif len(self.names) == 2:
            a, b = self.names
            self._cable((a, "eth0"), (b, "eth0"), self.rate)
        else:
            self._switch("ports")
            if self.racks > 1:
                for rack in range(self.racks):
                    self._switch(f"rack{rack}")
                    self._cable(("switch", f"up{rack}"), ("switch", f"to-rack{rack}"), self.rack_rate)
                    self._plug(f"up{rack}", f"rack{rack}")
                    self._plug(f"to-rack{rack}", "ports")
            for index, name in enumerate(self.names):
                self._cable((name, "eth0"), ("switch", f"to-{name}"), self.rate)
                self._plug(f"to-{name}", f"rack{index * self.racks // len(self.names)}" if self.racks > 1 else "ports")
        for index, name in enumerate(self.names):
            self.boxes[name].ip("addr", "add", f"{address(index)}/24", "dev", "eth0")
        if self.cables:
            self._route()
        self.server = SshServer(self.boxes, Path(self._folder.name, "ssh"))

    def _route(self):
        """Tells each host the next hop on the shortest way to each other host, and lets it forward packets."""
        joined = {name: [far for pair in self.cables for far in pair if name in pair and far != name]
                  for name in self.names}
        for name in self.names:
            run(*self.boxes[name].in_network("sh", "-c", PASS_ON))
            next_hop, reached = {far: far for far in joined[name]}, list(joined[name])
            for far in reached:  # grows as it goes
                for further in joined[far]:
                    if further != name and further not in next_hop:
                        next_hop[further] = next_hop[far]
                        reached.append(further)
            for far, first in next_hop.items():
                mine, next_host, to = (address(self.names.index(one)) for one in (name, first, far))
                self.boxes[name].ip("route", "add", to, "via", next_host, "dev", f"to-{first}", "onlink", "src", mine)

    def _switch(self, name):
        self.boxes["switch"].ip("link", "add", name, "type", "bridge")
        self.boxes["switch"].ip("link", "set", name, "mtu", str(self.mtu), "up")

    def _plug(self, device, switch):
        self.boxes["switch"].ip("link", "set", device, "master", switch)

    def _cable(self, near, far, rate=""):
        (first, device), (second, peer) = near, far
        mtu = ["mtu", str(self.mtu)]
        run("ip", "link", "add", device, "netns", str(self.boxes[first].pid), *mtu, "type", "veth",
            "peer", "name", peer, "netns", str(self.boxes[second].pid), *mtu)
        for name, end in (near, far):
            self.boxes[name].ip("link", "set", end, "up")
            if rate:
                self.boxes[name].tc("qdisc", "add", "dev", end, "root", "tbf", "rate", rate, "burst", BURST,
                                    "latency", LONGEST_QUEUE)
            if self.loss:
                self._lose(self.boxes[name], end)

    def _lose(self, box, device):
        source, program = Path(self._folder.name, "loss.c"), Path(self._folder.name, "loss.o")
        source.write_text(LOSS.replace("THRESHOLD", str(min(2**32 - 1, int(self.loss / 100 * 2**32)))))
        run(clang(), "-O2", "-target", "bpf", "-c", str(source), "-o", str(program))
        box.tc("qdisc", "add", "dev", device, "clsact")
        box.tc("filter", "add", "dev", device, "egress", "bpf", "da", "obj", str(program), "sec", "tc")

    @property
    def environment(self):
        """For commands beside the hosts and on them: this process's, and how to reach them."""
        return {**os.environ, SOCKET: self.server.path, "FERRY_SSH": f"{sys.executable} {Path(__file__).resolve()} ssh",
                **({"FERRY_SOCKET_IFNAME": "eth0"} if self.cables else {})}

    def command(self, name, *words):
        """`words`, to be run on a host."""
        return self.boxes[name].enter(*words)

    def run(self, name, *words, **options):
        """Runs a command on a host to its end, in this working directory: subprocess.CompletedProcess of text."""
        inside = f"cd {shlex.quote(os.getcwd())} && exec {shlex.join(words)}"
        return subprocess.run(self.command(name, "sh", "-c", inside), env=self.environment, capture_output=True,
                              text=True, **options)

    def cut(self, name):
        """Cuts a host off: packets from it and to it are lost without a word. join() ends that."""
        # The packets go to a hardware address that nobody has. No device goes down, so no socket is told.
        nobody = ["lladdr", "02:00:00:00:00:00", "dev", "eth0", "nud", "permanent"]
        for box, far in self._ways_of(name):
            box.ip("neigh", "replace", far, *nobody)

    def join(self, name):
        for box, far in self._ways_of(name):
            box.ip("neigh", "del", far, "dev", "eth0")

    def firewall(self, name, rule):
        """Adds a rule of nftables to what comes to a host: "tcp dport 4000-5000 drop"."""
        table = "add table inet test; add chain inet test input { type filter hook input priority 0; }; "
        run(*self.boxes[name].in_network("nft", f"{table} add rule inet test input iifname eth0 {rule}"))

    def _ways_of(self, name):
        mine = address(self.names.index(name))
        for index, other in enumerate(self.names):
            if other != name:
                yield self.boxes[name], address(index)
                yield self.boxes[other], mine

    def sent_bytes(self, name):
        """All bytes that left a host so far, headers included."""
        words = self.boxes[name].in_network("cat", "/proc/net/dev")
        text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        return int(text.partition("eth0:")[2].split()[8])


def main(arguments):
    if arguments[:1] == ["ssh"]:
        ssh(arguments[1:])
    parser = argparse.ArgumentParser(description="Runs a command beside several hosts a, b, .. on this machine.")
    parser.add_argument("--hosts", type=int, default=2, help="how many (%(default)s)")
    parser.add_argument("--rate", default="", help="of each direction of each cable, such as 1gbit")
    parser.add_argument("--loss", type=float, default=0.0, help="percentage of packets lost, needs clang")
    parser.add_argument("--racks", type=int, default=1, help="of as many hosts each (%(default)s)")
    parser.add_argument("--rack-rate", default="", help="of each direction of each rack's cable to the others")
    parser.add_argument("--mtu", type=int, default=9000, help="bytes of a packet (%(default)s)")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    try:
        with Hosts(options.hosts, options.rate, options.loss, options.mtu, options.racks, options.rack_rate) as hosts:
            return subprocess.run(options.command, env=hosts.environment, preexec_fn=die_with_parent).returncode
    except Unavailable as reason:
        skip(reason)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
