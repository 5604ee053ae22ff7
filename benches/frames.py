"""Frames of HTTP/2 as bytes (RFC 9113), and as much of HPACK (RFC 7541) as the benches need: what a client of one's own sends that
no library would."""

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS, WITH_PRIORITY = 1, 1, 4, 32
TABLE_SIZE, WINDOW_SIZE = 1, 4
CANCEL = 8
WINDOW_AT_FIRST, WINDOW_MAX = 65_535, (1 << 31) - 1
FRAME_HEAD = 9


def frame(kind, flags, stream, payload=b""):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def settings(values):
    return frame(SETTINGS, 0, 0, b"".join(name.to_bytes(2, "big") + value.to_bytes(4, "big") for name, value in values.items()))


def window_update(stream, increment):
    return frame(WINDOW_UPDATE, 0, stream, increment.to_bytes(4, "big"))


def reset(stream):
    return frame(RST_STREAM, 0, stream, CANCEL.to_bytes(4, "big"))


def integer(value, bits, first):
    """An integer with a prefix of so many bits; the bits of `first` stand before it."""
    most = (1 << bits) - 1
    if value < most:
        return bytes([first | value])
    value -= most
    rest = []
    while value >= 128:
        rest.append(value % 128 + 128)
        value //= 128
    return bytes([first | most, *rest, value])


def text(value):
    return integer(len(value), 7, 0) + value


def literal(name, value, kept=False):
    """A field whose name is spelled out; `kept` puts it into the decoder's table."""
    return (b"\x40" if kept else b"\x00") + text(name) + text(value)


def request(path, method=b"GET", authority=b"localhost"):
    """The header block of a request in the clear, which leaves the decoder's table as it is."""
    known = {b"GET": b"\x82", b"POST": b"\x83"}[method]
    # :scheme is http; :path and :authority are entries 4 and 1 of the table that every decoder has.
    return known + b"\x86" + b"\x04" + text(path) + b"\x01" + text(authority)


def read_frames(buffer):
    """Takes what has come whole out of a bytearray: kind, flags, stream and payload of each frame."""
    while len(buffer) >= FRAME_HEAD:
        length = int.from_bytes(buffer[:3], "big")
        if len(buffer) < FRAME_HEAD + length:
            return
        head, payload = bytes(buffer[:FRAME_HEAD]), bytes(buffer[FRAME_HEAD : FRAME_HEAD + length])
        del buffer[: FRAME_HEAD + length]
        yield head[3], head[4], int.from_bytes(head[5:], "big") & WINDOW_MAX, payload
