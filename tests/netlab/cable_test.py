"""The cable does what it says: packets that it changes are still right for TCP."""

import struct

from cable import flip, resets, tcp_checksum
from ucx_stream import HEADER, MAGIC_BYTES, OWN_BYTES_MAX, UcxStream


def packet_of(payload):
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 40 + len(payload), 7, 0, 64, 6, 0, bytes([198, 18, 0, 1]),
                     bytes([198, 18, 0, 2]))
    packet = bytearray(ip + struct.pack("!HHIIBBHHH", 4000, 5000, 1000, 2000, 0x50, 0x18, 512, 0, 0) + payload)
    packet[36:38] = tcp_checksum(packet).to_bytes(2, "big")
    return packet


def test_a_flipped_byte_has_a_right_checksum():
    for payload in (bytes(range(100)), bytes(range(101))):
        for at in (40, 41, 77, 38 + len(payload), 39 + len(payload)):
            packet = packet_of(payload)
            assert tcp_checksum(packet) == 0
            original = bytes(packet)
            flip(packet, at)
            assert packet[at] == original[at] ^ 0x10
            assert packet[40:at] + packet[at + 1:] == original[40:at] + original[at + 1:]
            assert tcp_checksum(packet) == 0


def test_resets_are_in_sequence_for_both_sides():
    forward, back = resets(packet_of(b"x" * 600))
    for packet in (forward, back):
        assert tcp_checksum(packet) == 0 and packet[33] == 4 and len(packet) == 40
    assert struct.unpack_from("!HHI", forward, 20) == (4000, 5000, 1000)
    assert struct.unpack_from("!HHI", back, 20) == (5000, 4000, 2000)
    assert forward[12:20] == back[16:20] + back[12:16]


def test_kv_is_found_however_the_stream_is_cut_into_packets():
    small, large = 100, 10000
    stream = bytes(MAGIC_BYTES) + HEADER.pack(1, small) + bytes(small) + 2 * (HEADER.pack(2, large) + bytes(large))
    first = MAGIC_BYTES + 2 * HEADER.size + small
    second = first + large + HEADER.size
    expected = {*range(first + OWN_BYTES_MAX, first + large), *range(second + OWN_BYTES_MAX, second + large)}
    for step in (1, 7, 1000, len(stream)):
        reader, found = UcxStream(0xFFFFFF00), set()
        for at in range(0, len(stream), step):
            for begin, end in reader.kv_in((0xFFFFFF00 + at) & 0xFFFFFFFF, stream[at:at + step]):
                found |= set(range(at + begin, at + end))
        assert found == expected


def test_what_is_sent_again_is_not_counted_again():
    stream = bytes(MAGIC_BYTES) + HEADER.pack(2, 10000) + bytes(10000)
    reader = UcxStream(5)
    assert reader.kv_in(5, stream[:5000]) and not reader.kv_in(5, stream[:5000]) and not reader.kv_in(9000, b"x" * 900)
    assert reader.kv_in(5005, stream[5000:])
