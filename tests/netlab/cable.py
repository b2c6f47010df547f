"""A cable in user space between two TUN interfaces: carries IP packets, and can delay, lose and change them, and reset
the TCP connections in them. One thread; a test sets what it wants from outside.

Bytes that it changes reach the receiver: the TCP checksum is changed along, as a bad switch or memory would.
"""

import collections
import os
import select
import struct
import threading
import time

from ucx_stream import UcxStream

TCP = 6
SYN = 2
RST = 4
READS_PER_TURN = 64


def ones_sum(data):
    """RFC 1071, folded, not complemented."""
    if len(data) % 2:
        data = bytes(data) + b"\0"
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def tcp_checksum(packet):
    """0 where the checksum in an IPv4 TCP packet is right."""
    header = (packet[0] & 15) * 4
    pseudo = bytes(packet[12:20]) + struct.pack("!BBH", 0, TCP, len(packet) - header)
    return ~ones_sum(pseudo + bytes(packet[header:])) & 0xFFFF


def flip(packet, at, bits=0x10):
    """Changes the byte at `at` and the checksum with it (RFC 1624)."""
    header = (packet[0] & 15) * 4
    word = at - (at - header) % 2
    old = int.from_bytes(packet[word:word + 2].ljust(2, b"\0"), "big")
    packet[at] ^= bits
    new = int.from_bytes(packet[word:word + 2].ljust(2, b"\0"), "big")
    field = slice(header + 16, header + 18)
    total = (~int.from_bytes(packet[field], "big") & 0xFFFF) + (~old & 0xFFFF) + new
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    packet[field] = (~total & 0xFFFF).to_bytes(2, "big")


def _reset(source, destination, source_port, destination_port, sequence):
    ip = bytearray(struct.pack("!BBHHHBBH4s4s", 0x45, 0, 40, 0, 0, 64, TCP, 0, source, destination))
    ip[10:12] = (~ones_sum(ip) & 0xFFFF).to_bytes(2, "big")
    packet = ip + struct.pack("!HHIIBBHHH", source_port, destination_port, sequence, 0, 0x50, RST, 0, 0, 0)
    packet[36:38] = tcp_checksum(packet).to_bytes(2, "big")
    return packet


def resets(packet):
    """What ends the connection of an IPv4 TCP packet: instead of it, a reset to its receiver and one to its sender."""
    header = (packet[0] & 15) * 4
    source, destination = bytes(packet[12:16]), bytes(packet[16:20])
    source_port, destination_port, sequence, acknowledged = struct.unpack_from("!HHII", packet, header)
    return (_reset(source, destination, source_port, destination_port, sequence),
            _reset(destination, source, destination_port, source_port, acknowledged))


class Cable:
    """`fds`: the ends, 0 and 1. `bytes` counts KV from end 0 to end 1."""

    def __init__(self, fds):
        self._fds = fds
        self._late = [collections.deque(), collections.deque()]  # (due, packet), by the end that sent it
        self._streams = {}  # UcxStream by ports
        self._flips = []
        self._cut_at = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._carry, name="cable")
        self.delay_s = 0.0
        self.plugged = True
        self.bytes = 0
        self.flipped = 0
        self.cuts = 0
        self._thread.start()

    # --- what a test does to it ---

    def flip_at(self, *bytes_from_now):
        """Changes the byte of KV that is so many bytes ahead, for each of them."""
        self._flips = sorted(self.bytes + ahead for ahead in bytes_from_now)

    def cut_at(self, bytes_from_now):
        """Resets each connection that carries KV from that byte on, until `mend`."""
        self._cut_at = self.bytes + bytes_from_now

    def mend(self):
        self._cut_at = None

    def close(self):
        self._over.set()
        self._thread.join()
        for fd in self._fds:
            os.close(fd)

    # --- its thread ---

    def _carry(self):
        poll = select.poll()
        for fd in self._fds:
            poll.register(fd, select.POLLIN)
        while not self._over.is_set():
            due = min((late[0][0] for late in self._late if late), default=None)
            wait_s = 0.05 if due is None else min(0.05, max(0.0, due - time.monotonic()))
            ready = {fd for fd, _ in poll.poll(wait_s * 1000)}
            for end in (0, 1):
                if self._fds[end] in ready:
                    self._take(end)
            now = time.monotonic()
            for end, late in enumerate(self._late):
                while late and late[0][0] <= now:
                    self._write(1 - end, late.popleft()[1])

    def _take(self, end):
        for _ in range(READS_PER_TURN):
            try:
                packet = bytearray(os.read(self._fds[end], 65536))
            except OSError:  # none left, or the interface is down
                return
            if not self.plugged:
                continue
            if end == 0:
                packet = self._strike(packet)
            if packet is None:
                continue
            if self.delay_s or self._late[end]:
                self._late[end].append((time.monotonic() + self.delay_s, packet))
            else:
                self._write(1 - end, packet)

    def _write(self, end, packet):
        try:
            os.write(self._fds[end], packet)
        except OSError:  # the interface is down
            pass

    def _strike(self, packet):
        for begin, end in self._kv_in(packet):
            if self._cut_at is not None and self.bytes + end - begin > self._cut_at:
                forward, back = resets(packet)
                self._write(1, forward)
                self._write(0, back)
                self.cuts += 1
                return None
            while self._flips and self._flips[0] < self.bytes + end - begin:
                flip(packet, begin + max(0, self._flips.pop(0) - self.bytes))
                self.flipped += 1
            self.bytes += end - begin
        return packet

    def _kv_in(self, packet):
        """Where KV lies in a packet."""
        if len(packet) < 40 or packet[0] >> 4 != 4 or packet[9] != TCP:
            return []
        tcp = (packet[0] & 15) * 4
        source, destination, sequence = struct.unpack_from("!HHI", packet, tcp)
        if packet[tcp + 13] & SYN:
            self._streams[source, destination] = UcxStream((sequence + 1) & 0xFFFFFFFF)
        start = tcp + (packet[tcp + 12] >> 4) * 4
        stream = self._streams.get((source, destination))
        if stream is None or start == len(packet):
            return []
        return [(start + begin, start + end) for begin, end in stream.kv_in(sequence, packet[start:])]
