// A client that does what the Go SDK does, for tests/e2e/test_go_client.py: it runs one scenario against an agent and
// prints what it found as one JSON object.
package main

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

type found map[string]any

func main() {
	base := flag.String("base", "", "the agent's URL")
	token := flag.String("token", "", "")
	flag.Parse()
	scenarios := map[string]func(rest) (found, error){
		"lifecycle": lifecycle, "commands": commands, "files": files, "slow": slow,
	}
	scenario := scenarios[flag.Arg(0)]
	if scenario == nil {
		fmt.Fprintln(os.Stderr, "no such scenario:", flag.Arg(0))
		os.Exit(2)
	}
	result, err := scenario(rest{*base, *token})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	json.NewEncoder(os.Stdout).Encode(result)
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// create, wait until active as the SDK does, connect.
func createAndConnect(r rest) (info, *session, error) {
	made, err := r.create(createOptions{UserID: "ann"})
	if err != nil {
		return made, nil, err
	}
	for made.Status != "active" {
		time.Sleep(50 * time.Millisecond)
		if made, err = r.get(made.ID); err != nil {
			return made, nil, err
		}
	}
	s, err := open(r.base, "/api/v1/sandboxes/"+made.ID+"/connect", r.token)
	return made, s, err
}

// ---- its life ----

func lifecycle(r rest) (found, error) {
	out := found{}
	made, err := r.create(createOptions{
		UserID: "ann", Labels: map[string]string{"team": "red"}, TTLHours: 2, Spec: &spec{Image: "debian:12"},
		Payloads: []payload{{API: "/api/v1/env", Body: map[string]string{"COLOR": "green"}}},
	})
	if err != nil {
		return nil, err
	}
	out["created"] = made
	for name, options := range map[string]listOptions{
		"all": {}, "own": {UserID: "ann"}, "stopped": {Status: "stopped"}, "page": {Limit: 5, Offset: 1},
	} {
		listed, err := r.list(options)
		if err != nil {
			return nil, err
		}
		out["list "+name] = listed
	}
	_, err = r.create(createOptions{UserID: "bob"})
	out["create by another"] = text(err)

	s, err := open(r.base, "/api/v1/sandboxes/"+made.ID+"/connect", r.token)
	if err != nil {
		return nil, err
	}
	var done struct {
		Output string `json:"output"`
	}
	if err := s.call("exec", found{"command": "echo $COLOR"}, &done); err != nil {
		return nil, err
	}
	out["color"] = done.Output

	steps := []struct {
		name string
		do   func() error
	}{
		{"extend", func() error { return r.post(made.ID, "extend", found{"seconds": 3600}) }},
		{"extend too far", func() error { return r.post(made.ID, "extend", found{"seconds": 86401}) }},
		{"configure", func() error { return r.post(made.ID, "configure", nil) }},
		{"update nothing", func() error { return r.do("PATCH", "/api/v1/sandboxes/"+made.ID, found{}, nil) }},
		{"update image", func() error { return r.do("PATCH", "/api/v1/sandboxes/"+made.ID, found{"image": "new"}, nil) }},
		{"stop", func() error { return r.post(made.ID, "stop", nil) }},
		{"exec while stopped", func() error { return s.call("exec", found{"command": "true"}, nil) }},
		{"update while stopped", func() error {
			return r.do("PATCH", "/api/v1/sandboxes/"+made.ID, found{"payloads": []payload{}}, nil)
		}},
		{"configure while stopped", func() error { return r.post(made.ID, "configure", nil) }},
		{"start", func() error { return r.post(made.ID, "start", nil) }},
		{"restart", func() error { return r.post(made.ID, "restart", nil) }},
		{"rolling start", func() error { return r.do("POST", "/admin/rolling/start", found{"image": "new"}, nil) }},
		{"another id", func() error { _, err := r.get("another"); return err }},
	}
	for _, step := range steps {
		out[step.name] = text(step.do())
	}
	var pool poolStatus
	if err := r.do("GET", "/admin/pool/status", nil, &pool); err != nil {
		return nil, err
	}
	out["pool"] = pool
	if out["last"], err = r.get(made.ID); err != nil {
		return nil, err
	}
	out["delete"] = text(r.do("DELETE", "/api/v1/sandboxes/"+made.ID, nil, nil))
	<-s.closed
	out["close code"] = s.code
	return out, nil
}

// ---- commands ----

// follow reads the events of a call and says what came: kinds in order, text by stream.
func follow(c *call) (kinds []string, streams map[string]string) {
	streams = map[string]string{}
	for n := range c.events {
		if len(kinds) == 0 || kinds[len(kinds)-1] != n.method {
			kinds = append(kinds, n.method)
		}
		if n.method == "exec.stdout" || n.method == "exec.stderr" {
			streams[n.method] += n.Data
		}
	}
	return kinds, streams
}

type finished struct {
	CmdID    string `json:"cmd_id"`
	Output   string `json:"output"`
	ExitCode int    `json:"exit_code"`
}

func commands(r rest) (found, error) {
	out := found{}
	_, s, err := createAndConnect(r)
	if err != nil {
		return nil, err
	}
	c, err := s.start("exec", found{"command": "echo out; sleep 0.05; echo err >&2; exit 3", "timeout": 20}, true, wait)
	if err != nil {
		return nil, err
	}
	kinds, streams := follow(c)
	var done finished
	if err := c.result(&done); err != nil {
		return nil, err
	}
	out["kinds"], out["streams"], out["done"] = kinds, streams, done

	var detached struct {
		CmdID string `json:"cmd_id"`
		PID   uint32 `json:"pid"`
	}
	if err := s.call("exec", found{"command": "echo begun; sleep 60", "detached": true}, &detached); err != nil {
		return nil, err
	}
	logs, err := s.start("exec_logs", found{"cmd_id": detached.CmdID}, true, wait)
	if err != nil {
		return nil, err
	}
	for n := range logs.events {
		if n.method == "exec.stdout" {
			out["kill"] = text(s.call("kill", found{"cmd_id": detached.CmdID, "signal": "SIGKILL"}, nil))
		}
	}
	var killed finished
	if err := logs.result(&killed); err != nil {
		return nil, err
	}
	out["killed"], out["pid"] = killed, detached.PID

	// Two hundred at once on one connection: every answer finds its own call.
	var group sync.WaitGroup
	wrong := make(chan string, 200)
	for i := 0; i < 200; i++ {
		group.Add(1)
		go func(i int) {
			defer group.Done()
			var done finished
			err := s.call("exec", found{"command": fmt.Sprintf("echo %d; exit %d", i, i%256)}, &done)
			if err != nil || done.Output != fmt.Sprintf("%d\n", i) || done.ExitCode != i%256 {
				wrong <- fmt.Sprintf("%d: %v %v", i, done, err)
			}
		}(i)
	}
	group.Wait()
	out["wrong"] = len(wrong)
	return out, nil
}

// ---- files ----

func files(r rest) (found, error) {
	out := found{}
	_, s, err := createAndConnect(r)
	if err != nil {
		return nil, err
	}
	random, err := os.Open("/dev/urandom")
	if err != nil {
		return nil, err
	}
	content := make([]byte, 30<<20)
	if _, err := io.ReadFull(random, content); err != nil {
		return nil, err
	}
	params := found{"path": "big", "data": base64.StdEncoding.EncodeToString(content), "mode": 0o640}
	if err := s.call("write_binary", params, nil); err != nil {
		return nil, err
	}
	// The first two fit into the channel whole. For the third the consumer must keep up, which is up to this machine
	// too: when it is too busy to let the consumer run, the client tries again, as the SDK's user would.
	for name, read := range map[string]found{
		"64 chunks": {"path": "big", "length": 64 << 16},
		"1 MiB":     {"path": "big", "chunk_size": 1 << 20},
		"default":   {"path": "big"},
	} {
		var length int
		var got string
		tries := 0
		for full := int64(-1); full != 0 && tries < 5; tries++ {
			if length, got, full, err = readStream(s, read); err != nil {
				return nil, err
			}
		}
		want := sha256.Sum256(content[:length])
		out[name] = found{"length": length, "equal": got == string(want[:]), "tries": tries}
	}
	return out, nil
}

// readStream says how long the file was, the hash of what came, and how often there was no place for it.
func readStream(s *session, params found) (int, string, int64, error) {
	c, err := s.start("read_stream", params, true, drop)
	if err != nil {
		return 0, "", 0, err
	}
	hash := sha256.New()
	for n := range c.events {
		if n.method == "read_stream.chunk" {
			bytes, err := base64.StdEncoding.DecodeString(n.Data)
			if err != nil {
				return 0, "", 0, err
			}
			hash.Write(bytes)
		}
	}
	var done struct {
		TotalBytes int `json:"total_bytes"`
	}
	err = c.result(&done)
	return done.TotalBytes, string(hash.Sum(nil)), c.full.Load(), err
}

// ---- a slow consumer ----

// 64 commands at once on one connection, all printing, and nobody in a hurry to take it.
func slow(r rest) (found, error) {
	const streams, size = 64, 200_000
	_, s, err := createAndConnect(r)
	if err != nil {
		return nil, err
	}
	var group sync.WaitGroup
	var mutex sync.Mutex
	lost, failed, full := 0, 0, int64(0)
	for i := 0; i < streams; i++ {
		command := fmt.Sprintf("yes %07d | head -c %d", i, size)
		c, err := s.start("exec", found{"command": command}, true, wait)
		if err != nil {
			return nil, err
		}
		group.Add(1)
		go func(i int) {
			defer group.Done()
			var at int64
			good := true
			unit := fmt.Sprintf("%07d\n", i)
			for n := range c.events {
				if n.method != "exec.stdout" {
					continue
				}
				time.Sleep(2 * time.Millisecond)
				good = good && n.Offset == at
				for k := range n.Data {
					good = good && n.Data[k] == unit[(int(at)+k)%len(unit)]
				}
				at += int64(len(n.Data))
			}
			err := c.result(nil)
			mutex.Lock()
			defer mutex.Unlock()
			full += c.full.Load()
			if err != nil {
				failed++
			}
			if !good || at != size {
				lost++
			}
		}(i)
	}
	group.Wait()
	return found{"streams": streams, "lost": lost, "failed": failed, "full": full}, nil
}
