// Package sqstest tests package sqs on goaws. It has a go.mod of its own, so that usher does not depend on goaws.
package sqstest

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/Admiral-Piett/goaws/app"
	"github.com/Admiral-Piett/goaws/app/gosqs"
	"github.com/Admiral-Piett/goaws/app/router"
	"github.com/sirupsen/logrus"
)

// emulator is goaws behind a translator, since goaws speaks the query protocol and the SDK JSON. Faults are put in between.
type emulator struct {
	*httptest.Server
	aws    http.Handler
	lose   atomic.Int64 // every so many sends, the answer is lost
	refuse atomic.Int64 // every so many messages of a batch, one fails
	calls  atomic.Int64
	seen   atomic.Int64
}

func newEmulator(t *testing.T) *emulator {
	t.Helper()
	logrus.SetOutput(io.Discard)
	t.Setenv("AWS_ACCESS_KEY_ID", "x")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "y")
	t.Setenv("AWS_REGION", "local")
	e := &emulator{aws: router.New()}
	e.Server = httptest.NewServer(e)
	t.Cleanup(e.Close)
	host, port, _ := strings.Cut(strings.TrimPrefix(e.URL, "http://"), ":")
	app.CurrentEnvironment = app.Environment{Host: host, Port: port, Region: "local", AccountID: "1", QueueAttributeDefaults: app.EnvQueueAttributes{VisibilityTimeout: 30}}
	quit := make(chan struct{})
	go gosqs.PeriodicTasks(100*time.Millisecond, quit)
	t.Cleanup(func() { close(quit) })
	return e
}

func (e *emulator) queue(t *testing.T, name string) string {
	t.Helper()
	e.query(url.Values{"Action": {"CreateQueue"}, "QueueName": {name}}, nil)
	return e.URL + "/1/" + name
}

// query asks goaws.
func (e *emulator) query(form url.Values, out any) (int, string) {
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	w := httptest.NewRecorder()
	e.aws.ServeHTTP(w, r)
	if w.Code == http.StatusOK && out != nil {
		if err := xml.Unmarshal(w.Body.Bytes(), out); err != nil {
			panic(err)
		}
	}
	return w.Code, w.Body.String()
}

type attribute struct{ DataType, StringValue string }

type message struct {
	ID         string               `json:"Id"`
	Body       string               `json:"MessageBody"`
	Group      string               `json:"MessageGroupId"`
	Dedup      string               `json:"MessageDeduplicationId"`
	Attributes map[string]attribute `json:"MessageAttributes"`
}

func (m message) form(f url.Values, prefix string) {
	set := func(k, v string) {
		if v != "" {
			f.Set(prefix+k, v)
		}
	}
	set("Id", m.ID)
	set("MessageBody", m.Body)
	set("MessageGroupId", m.Group)
	set("MessageDeduplicationId", m.Dedup)
	n := 0
	for name, a := range m.Attributes {
		n++
		at := fmt.Sprintf("MessageAttribute.%d.", n)
		set(at+"Name", name)
		set(at+"Value.DataType", a.DataType)
		set(at+"Value.StringValue", a.StringValue)
	}
}

// ServeHTTP translates.
func (e *emulator) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, op, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	var in struct {
		message
		QueueURL      string    `json:"QueueUrl"`
		Entries       []message `json:"Entries"`
		Max           int       `json:"MaxNumberOfMessages"`
		Visibility    *int      `json:"VisibilityTimeout"`
		ReceiptHandle string    `json:"ReceiptHandle"`
	}
	body, _ := io.ReadAll(r.Body)
	if err := json.Unmarshal(body, &in); err != nil {
		http.Error(w, err.Error(), 400)
		return
	}
	form := url.Values{"Action": {op}, "QueueUrl": {in.QueueURL}}
	answer := map[string]any{}
	var code int
	var text string
	switch op {
	case "SendMessage":
		in.form(form, "")
		var out app.SendMessageResponse
		code, text = e.query(form, &out)
		answer["MessageId"], answer["MD5OfMessageBody"] = out.Result.MessageId, out.Result.MD5OfMessageBody
	case "SendMessageBatch":
		ok, bad := []any{}, []any{}
		n := 0
		for _, m := range in.Entries {
			if every := e.refuse.Load(); every > 0 && e.seen.Add(1)%every == 0 {
				bad = append(bad, map[string]any{"Id": m.ID, "Code": "InternalFailure", "SenderFault": false, "Message": "not now"})
				continue
			}
			if strings.Contains(m.Body, "poison") {
				bad = append(bad, map[string]any{"Id": m.ID, "Code": "InvalidMessageContents", "SenderFault": true, "Message": "never"})
				continue
			}
			n++
			m.form(form, fmt.Sprintf("SendMessageBatchRequestEntry.%d.", n))
		}
		code = http.StatusOK
		if n > 0 {
			var out app.SendMessageBatchResponse
			code, text = e.query(form, &out)
			for _, s := range out.Result.Entry {
				ok = append(ok, map[string]any{"Id": s.Id, "MessageId": s.MessageId, "MD5OfMessageBody": s.MD5OfMessageBody})
			}
		}
		answer["Successful"], answer["Failed"] = ok, bad
		if every := e.lose.Load(); every > 0 && e.calls.Add(1)%every == 0 {
			panic(http.ErrAbortHandler) // it was done, and nobody hears of it
		}
	case "ReceiveMessage":
		form.Set("MaxNumberOfMessages", fmt.Sprint(max(in.Max, 1)))
		if in.Visibility != nil {
			form.Set("VisibilityTimeout", fmt.Sprint(*in.Visibility))
		}
		var out app.ReceiveMessageResponse
		code, text = e.query(form, &out)
		list := []any{}
		for _, m := range out.Result.Message {
			list = append(list, map[string]any{"MessageId": m.MessageId, "ReceiptHandle": m.ReceiptHandle, "Body": string(m.Body), "MD5OfBody": m.MD5OfBody})
		}
		answer["Messages"] = list
	case "DeleteMessage":
		form.Set("ReceiptHandle", in.ReceiptHandle)
		code, text = e.query(form, nil)
	case "ChangeMessageVisibility":
		form.Set("ReceiptHandle", in.ReceiptHandle)
		form.Set("VisibilityTimeout", fmt.Sprint(*in.Visibility))
		code, text = e.query(form, nil)
	case "GetQueueAttributes":
		var out app.GetQueueAttributesResponse
		form.Set("AttributeName.1", "All")
		code, text = e.query(form, &out)
		attrs := map[string]string{}
		for _, a := range out.Result.Attrs {
			if strings.HasPrefix(a.Name, "ApproximateNumberOfMessages") {
				attrs[a.Name] = a.Value
			}
		}
		answer["Attributes"] = attrs
	default:
		code, text = 400, "no such operation: "+op
	}
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	if code != http.StatusOK {
		kind := "InternalFailure"
		if strings.Contains(text, "NonExistentQueue") {
			kind = "QueueDoesNotExist"
		}
		w.WriteHeader(400)
		answer = map[string]any{"__type": "com.amazonaws.sqs#" + kind, "message": text}
	}
	_ = json.NewEncoder(w).Encode(answer)
}
