// The REST calls, each in the shape that the Go SDK sends.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

type spec struct {
	CPU    string `json:"cpu,omitempty"`
	Memory string `json:"memory,omitempty"`
	Image  string `json:"image,omitempty"`
}

type info struct {
	ID         string            `json:"id"`
	UserID     string            `json:"user_id"`
	Status     string            `json:"status"`
	PreviewURL string            `json:"preview_url"`
	Port       int               `json:"port"`
	Spec       *spec             `json:"spec,omitempty"`
	Labels     map[string]string `json:"labels,omitempty"`
	CreatedAt  string            `json:"created_at"`
	ExpireAt   string            `json:"expire_at"`
}

type payload struct {
	API  string `json:"api"`
	Body any    `json:"body,omitempty"`
}

type createOptions struct {
	UserID   string            `json:"user_id"`
	Spec     *spec             `json:"spec,omitempty"`
	Labels   map[string]string `json:"labels,omitempty"`
	Payloads []payload         `json:"payloads,omitempty"`
	TTLHours int               `json:"ttl_hours,omitempty"`
}

type listOptions struct {
	UserID string `json:"user_id,omitempty"`
	Status string `json:"status,omitempty"`
	Limit  int    `json:"limit,omitempty"`
	Offset int    `json:"offset,omitempty"`
}

type listResult struct {
	Items      []info `json:"items"`
	Pagination struct {
		Total   int  `json:"total"`
		HasMore bool `json:"has_more"`
	} `json:"pagination"`
}

type poolStatus struct {
	Total          int        `json:"total"`
	Active         int        `json:"active"`
	Utilization    float64    `json:"utilization"`
	Healthy        bool       `json:"healthy"`
	LastScaleAt    *time.Time `json:"last_scale_at,omitempty"`
	LastAllocateAt *time.Time `json:"last_allocate_at,omitempty"`
}

type rest struct {
	base, token string
}

// do sends a call; body nil: none is sent. It fails as the SDK does, by the code in the envelope.
func (r rest) do(method, path string, body, into any) error {
	var reader io.Reader
	if body != nil {
		encoded, err := json.Marshal(body)
		if err != nil {
			return err
		}
		reader = bytes.NewReader(encoded)
	}
	request, err := http.NewRequest(method, r.base+path, reader)
	if err != nil {
		return err
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if r.token != "" {
		request.Header.Set("Authorization", "Bearer "+r.token)
	}
	request.Header.Set("X-Service-ID", "service-7")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	var envelope struct {
		Code      int             `json:"code"`
		Message   string          `json:"message"`
		Data      json.RawMessage `json:"data"`
		RequestID string          `json:"request_id"`
	}
	if err := json.NewDecoder(response.Body).Decode(&envelope); err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	if envelope.Code != 0 {
		return fmt.Errorf("error %d: %s", envelope.Code, envelope.Message)
	}
	if envelope.RequestID == "" {
		return fmt.Errorf("%s %s: no request_id", method, path)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(envelope.Data, into)
}

func (r rest) create(options createOptions) (info, error) {
	var data struct {
		Sandbox info `json:"sandbox"`
	}
	err := r.do("POST", "/api/v1/sandboxes", options, &data)
	return data.Sandbox, err
}

func (r rest) list(options listOptions) (listResult, error) {
	var data listResult
	err := r.do("POST", "/api/v1/sandboxes", options, &data)
	return data, err
}

func (r rest) get(id string) (info, error) {
	var data info
	err := r.do("GET", "/api/v1/sandboxes/"+id, nil, &data)
	return data, err
}

func (r rest) post(id, call string, body any) error {
	return r.do("POST", "/api/v1/sandboxes/"+id+"/"+call, body, nil)
}
