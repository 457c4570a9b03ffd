// One WebSocket session, routed as the Go SDK does it: a notification belongs to the call whose number is in params.id,
// and each call has a channel of 64 places.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/gorilla/websocket"
)

const slots = 64

type message struct {
	ID     *int64          `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  *rpcError       `json:"error"`
}

type rpcError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func (e *rpcError) Error() string { return fmt.Sprintf("%d: %s", e.Code, e.Message) }

type notification struct {
	ID     any    `json:"id"`
	Data   string `json:"data"`
	Offset int64  `json:"offset"`
	Output string `json:"output"`
	method string
}

// What happens to a notification for which there is no place.
type overflow int

const (
	drop overflow = iota // as the SDK does with read_stream.*
	wait                 // holds the whole connection: the client reads slowly
)

type call struct {
	answer   chan *message
	events   chan notification // nil: nobody listens
	overflow overflow
	full     atomic.Int64 // how often there was no place
}

type session struct {
	conn    *websocket.Conn
	writing sync.Mutex
	mutex   sync.Mutex
	calls   map[int64]*call
	next    int64
	closed  chan struct{}
	code    int // of the close frame
}

func open(base, path, token string) (*session, error) {
	header := http.Header{"X-Project-Id": {"project-7"}}
	if token != "" {
		header.Set("Authorization", "Bearer "+token)
	}
	conn, _, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(base, "http")+path, header)
	if err != nil {
		return nil, err
	}
	s := &session{conn: conn, calls: map[int64]*call{}, closed: make(chan struct{})}
	go s.read()
	return s, nil
}

func (s *session) read() {
	defer s.end()
	for {
		_, raw, err := s.conn.ReadMessage()
		if err != nil {
			var closed *websocket.CloseError
			if errors.As(err, &closed) {
				s.code = closed.Code
			}
			return
		}
		var m message
		if json.Unmarshal(raw, &m) != nil {
			panic("the agent sent what is no JSON")
		}
		if m.Method != "" {
			s.route(&m)
		} else if m.ID != nil {
			s.finish(&m)
		}
	}
}

func (s *session) end() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for id, c := range s.calls {
		delete(s.calls, id)
		close(c.answer)
		if c.events != nil {
			close(c.events)
		}
	}
	close(s.closed)
}

func (s *session) route(m *message) {
	n := notification{method: m.Method}
	if json.Unmarshal(m.Params, &n) != nil {
		return
	}
	id, ok := n.ID.(float64)
	if !ok {
		return
	}
	s.mutex.Lock()
	c := s.calls[int64(id)]
	s.mutex.Unlock()
	if c == nil || c.events == nil {
		return
	}
	select {
	case c.events <- n:
	default:
		c.full.Add(1)
		if c.overflow == wait {
			c.events <- n
		}
	}
}

func (s *session) finish(m *message) {
	s.mutex.Lock()
	c := s.calls[*m.ID]
	delete(s.calls, *m.ID)
	s.mutex.Unlock()
	if c == nil {
		return
	}
	if c.events != nil {
		close(c.events)
	}
	c.answer <- m
}

// start sends a request; with events, its notifications come through a channel of 64 places.
func (s *session) start(method string, params any, events bool, o overflow) (*call, error) {
	c := &call{answer: make(chan *message, 1), overflow: o}
	if events {
		c.events = make(chan notification, slots)
	}
	s.mutex.Lock()
	s.next++
	id := s.next
	s.calls[id] = c
	s.mutex.Unlock()
	request := map[string]any{"jsonrpc": "2.0", "id": id, "method": method, "params": params}
	s.writing.Lock()
	defer s.writing.Unlock()
	return c, s.conn.WriteJSON(request)
}

func (c *call) result(into any) error {
	m, ok := <-c.answer
	if !ok {
		return errors.New("the connection was closed")
	}
	if m.Error != nil {
		return m.Error
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(m.Result, into)
}

func (s *session) call(method string, params, into any) error {
	c, err := s.start(method, params, false, drop)
	if err != nil {
		return err
	}
	return c.result(into)
}
