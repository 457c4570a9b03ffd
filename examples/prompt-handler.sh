#!/bin/sh
# A handler for POST /prompt: sandkeeper --prompt-handler examples/prompt-handler.sh
bytes=$(wc -c)
echo '{"type":"tool_start","id":"1","name":"date","arguments":{}}'
echo '{"type":"tool_done","id":"1","result":"'"$(date -u)"'"}'
echo "It is $(date -u), and your request has $bytes bytes. A line that is no event is text."
echo '{"type":"done"}'
