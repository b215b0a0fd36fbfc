"""Talk to a gateway with anthropic and langchain-openai; print what came back as JSON."""

from __future__ import annotations

import json
import sys

import anthropic
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

url = sys.argv[1]
found: dict[str, object] = {}

client = anthropic.Anthropic(base_url=url, api_key="any", max_retries=0)
asked = [{"role": "user", "content": "hello"}]
whole = client.messages.create(model="tiny", max_tokens=5, messages=asked)
found["message"] = whole.usage.output_tokens
with client.messages.stream(model="tiny", max_tokens=5, messages=asked) as stream:
    found["streamed"] = stream.get_final_message().usage.output_tokens
count = client.messages.count_tokens(model="tiny", messages=asked)
found["counted"] = count.input_tokens > 0
try:
    client.messages.create(model="other", max_tokens=5, messages=asked)
except anthropic.APIStatusError as error:
    found["refused"] = type(error).__name__

chat = ChatOpenAI(model="tiny", base_url=f"{url}/v1", api_key="any", max_tokens=5)
found["langchain"] = chat.invoke("hello").usage_metadata["output_tokens"]
found["langchain_streamed"] = bool("".join(str(part.content) for part in chat.stream("hello")))
embeddings = OpenAIEmbeddings(
    model="tiny", base_url=f"{url}/v1", api_key="any", check_embedding_ctx_length=False
)
found["langchain_embeddings"] = [len(v) for v in embeddings.embed_documents(["hello", "there"])]
responses = ChatOpenAI(
    model="tiny", base_url=f"{url}/v1", api_key="any", max_tokens=5, use_responses_api=True
)
found["langchain_responses"] = bool(responses.invoke("hello").content)
sys.stdout.write(json.dumps(found))
