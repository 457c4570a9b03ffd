"""Messages written by hand."""

import json


def request(method, params=None, call_id=1, **more):
    message = {"jsonrpc": "2.0", "method": method, "id": call_id, **more}
    if params is not None:
        message["params"] = params
    return json.dumps(message)


def padded(size, method="exec_list", call_id=1):
    """A request that takes exactly `size` bytes, by a field that no method knows."""
    empty = request(method, {"padding": ""}, call_id)
    return request(method, {"padding": "x" * (size - len(empty))}, call_id)


def nested(levels, inner="0"):
    """A valid request whose whole JSON text is `levels` deep: the request, its params, and arrays below."""
    deep = "[" * (levels - 2) + inner + "]" * (levels - 2)
    return '{"jsonrpc":"2.0","method":"exec_list","id":1,"params":{"deep":%s}}' % deep
