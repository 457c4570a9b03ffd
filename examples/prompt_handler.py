#!/usr/bin/env python3
"""A handler for POST /prompt that asks a model, through any API that speaks OpenAI's chat completions, and passes its
words on as they come. Standard library only.

    OPENAI_BASE_URL   such as http://localhost:8080/v1   (default: https://api.openai.com/v1)
    OPENAI_API_KEY    sent as a bearer token when it is set
    OPENAI_MODEL      the model's name; "model" in the prompt's options goes before it
    OPENAI_TIMEOUT    seconds without a byte from the API (default: 120)

    sandkeeper --prompt-handler examples/prompt_handler.py
"""

import base64
import json
import os
import sys
import urllib.error
import urllib.request

OPTIONS = ("temperature", "top_p", "max_tokens", "stop", "seed")  # handed on as they are
DATA_LIMIT = 4096  # of what an API says about a failure


def emit(event_type, **fields):
    print(json.dumps({"type": event_type, **fields}, ensure_ascii=False), flush=True)


def content_of(request):
    """The prompt as the API wants it: a string, or a list of parts."""
    prompt = request["prompt"]
    if isinstance(prompt, str):
        return prompt
    files = {file["index"]: file for file in request["files"]}
    return [part_of(block, files.get(index)) for index, block in enumerate(prompt)]


def part_of(block, file):
    if file is None:
        return {"type": "text", "text": block["text"]}
    with open(file["path"], "rb") as opened:
        content = opened.read()
    # What the content is, not what somebody says it is: an API refuses a picture of the wrong type.
    media_type = file["found_type"]
    if media_type.startswith("image/"):
        url = f"data:{media_type};base64,{base64.b64encode(content).decode()}"
        return {"type": "image_url", "image_url": {"url": url}}
    return {"type": "text", "text": content.decode("utf-8", "replace")}


def call(request):
    """The API's answer, to be read as it comes."""
    options = request["options"]
    model = options.get("model") or os.environ.get("OPENAI_MODEL")
    if not model:
        raise SystemExit("no model: set OPENAI_MODEL, or give options.model")
    messages = [{"role": "user", "content": content_of(request)}]
    if options.get("system"):
        messages.insert(0, {"role": "system", "content": options["system"]})
    body = {"model": model, "messages": messages, "stream": True}
    body.update({name: options[name] for name in OPTIONS if name in options})
    headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
    if key := os.environ.get("OPENAI_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    url = os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1").rstrip("/") + "/chat/completions"
    return urllib.request.urlopen(
        urllib.request.Request(url, json.dumps(body).encode(), headers),
        timeout=float(os.environ.get("OPENAI_TIMEOUT", "120")),
    )


def pass_on(answer):
    """Server-sent events: lines "data: {...}", the last one "data: [DONE]"."""
    for line in answer:
        field, _, data = line.decode("utf-8").strip().partition(":")
        if field != "data":
            continue  # comments that keep the connection, blank lines
        if data.strip() == "[DONE]":
            return
        event = json.loads(data)
        if "error" in event:
            raise SystemExit(f"the API says: {event['error'].get('message', event['error'])}")
        for choice in event.get("choices", []):
            if text := choice.get("delta", {}).get("content"):
                emit("text", text=text)
    raise SystemExit("the API's answer ended in the middle")


def main():
    request = json.load(sys.stdin)
    try:
        with call(request) as answer:
            pass_on(answer)
    except urllib.error.HTTPError as error:
        raise SystemExit(f"the API answers {error.code}: {error.read(DATA_LIMIT).decode('utf-8', 'replace')}") from None
    except OSError as error:  # no connection, or nothing for too long
        raise SystemExit(f"the API cannot be reached: {error}") from None
    emit("done")


if __name__ == "__main__":
    main()
