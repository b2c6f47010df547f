"""Where KV lies in a TCP stream of UCX. UCX over TCP sends a magic number and then messages: a byte that says what it is,
four with its length, and so many bytes; a rendezvous is cut into long ones, whose first bytes are UCX's own header.

Needed because UCX trusts its headers: a flipped byte in one of them, a thousandth of the stream, ends the process
(transport/README.md), which is not what tests of KV's integrity are about.
"""

import struct

MAGIC_BYTES = 8
HEADER = struct.Struct("<BI")
BULK_BYTES_MIN = 4096  # of a message that holds KV
OWN_BYTES_MAX = 256  # what is not KV at a message's beginning: UCX's header, and ours where the message is eager


class UcxStream:
    """One direction of one connection, from its SYN on."""

    def __init__(self, first_sequence):
        self._next = first_sequence
        self._head = b""
        self._skip = MAGIC_BYTES
        self._in_message = None  # (offset in message, length)

    def kv_in(self, sequence, payload):
        """The ranges of `payload` that are KV. None are known of what comes again, or out of order."""
        if sequence != self._next:
            return []
        self._next = (self._next + len(payload)) & 0xFFFFFFFF
        ranges, at = [], min(self._skip, len(payload))
        self._skip -= at
        while at < len(payload):
            if self._in_message is None:
                take = min(HEADER.size - len(self._head), len(payload) - at)
                self._head += bytes(payload[at:at + take])
                at += take
                if len(self._head) == HEADER.size:
                    self._in_message, self._head = (0, HEADER.unpack(self._head)[1]), b""
                continue
            offset, length = self._in_message
            take = min(length - offset, len(payload) - at)
            begin = at + max(0, OWN_BYTES_MAX - offset)
            if length >= BULK_BYTES_MIN and begin < at + take:
                ranges.append((begin, at + take))
            at += take
            self._in_message = (offset + take, length) if offset + take < length else None
        return ranges
