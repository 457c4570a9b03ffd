# puck_reader.exs - what Puck.Sandbox.Runtime does with a sandbox, on the real BEAM, with the standard library only.
#
#   elixir puck_reader.exs PORT PROMPT_JSON
#
# It asks GET /health every 50 ms until the answer is exactly 200, then sends the prompt and reads the answer as a stream
# of messages to this process. Prints "ready N" (N: polls that failed), "event LINE" for each whole line as it comes,
# "rest N" (bytes behind the last newline, which are dropped), "end", or "status CODE BODY" for an answer that is not 200.
# Exit code 1 after that, or when nothing comes for 20 s.

defmodule PuckReader do
  @silence 20_000

  def await_ready(url, tries \\ 0) do
    case :httpc.request(:get, {url ++ '/health', []}, [timeout: 2_000], []) do
      {:ok, {{_, 200, _}, _headers, _body}} ->
        IO.puts("ready #{tries}")

      _ when tries < 200 ->
        Process.sleep(50)
        await_ready(url, tries + 1)

      other ->
        IO.puts("never ready: #{inspect(other)}")
        System.halt(1)
    end
  end

  def prompt(url, body) do
    request = {url ++ '/prompt', [], 'application/json', body}
    options = [sync: false, stream: :self, body_format: :binary]
    {:ok, ref} = :httpc.request(:post, request, [], options)
    receive_events(ref, "")
  end

  defp receive_events(ref, rest) do
    receive do
      {:http, {^ref, :stream_start, headers}} ->
        IO.puts("type #{:proplists.get_value('content-type', headers)}")
        receive_events(ref, rest)

      {:http, {^ref, :stream, piece}} ->
        {lines, [rest]} = (rest <> piece) |> String.split("\n") |> Enum.split(-1)
        Enum.each(lines, &IO.puts("event #{&1}"))
        receive_events(ref, rest)

      {:http, {^ref, :stream_end, _headers}} ->
        IO.puts("rest #{byte_size(rest)}")
        IO.puts("end")

      # httpc streams only 200 and 206; every other answer comes whole.
      {:http, {^ref, {{_version, status, _reason}, _headers, body}}} ->
        IO.puts("status #{status} #{body}")
        System.halt(1)

      {:http, {^ref, {:error, reason}}} ->
        IO.puts("error #{inspect(reason)}")
        System.halt(1)
    after
      @silence ->
        IO.puts("silence")
        System.halt(1)
    end
  end
end

[port, prompt] = System.argv()
{:ok, _} = Application.ensure_all_started(:inets)
:io.setopts(:standard_io, encoding: :unicode)
url = 'http://127.0.0.1:#{port}'
PuckReader.await_ready(url)
PuckReader.prompt(url, ~s({"prompt":#{prompt},"options":{}}))
