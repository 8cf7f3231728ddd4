package faultproxy

import (
	"encoding/json"
	"fmt"
	"hash/crc32"
	"net/http"
	"strconv"
	"strings"
)

// refuse answers as the service does: status, type, words and headers of DynamoDB's and Kinesis' own errors
// ("Error handling with DynamoDB", "Kinesis Data Streams: common errors" in the AWS documentation).
func refuse(w http.ResponseWriter, req *http.Request, service, op string, f Fault) {
	status, kind, words := http.StatusBadRequest, "", ""
	dynamo := strings.HasPrefix(service, "DynamoDB")
	switch {
	case f == Fail && dynamo:
		status, kind, words = http.StatusInternalServerError, "com.amazonaws.dynamodb.v20120810#InternalServerError", "The request processing has failed because of an unknown error, exception or failure."
	case f == Fail:
		status, kind, words = http.StatusInternalServerError, "InternalFailure", "Internal service failure."
	case dynamo:
		kind = "com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException"
		words = "The level of configured provisioned throughput for the table was exceeded. Consider increasing your provisioning level with the UpdateTable API."
	case op == "PutRecord", op == "PutRecords", op == "GetRecords":
		kind, words = "ProvisionedThroughputExceededException", "Rate exceeded for shard shardId-000000000000 in stream test under account 000000000000."
	default:
		kind, words = "LimitExceededException", fmt.Sprintf("Rate exceeded for %s under account 000000000000.", op)
	}
	answer, err := json.Marshal(map[string]string{"__type": kind, "message": words})
	if err != nil {
		panic(err) // two strings
	}
	h := w.Header()
	h.Set("Content-Type", "application/x-amz-json-1.0")
	if !dynamo {
		h.Set("Content-Type", "application/x-amz-json-1.1")
	} else {
		h.Set("X-Amz-Crc32", strconv.FormatUint(uint64(crc32.ChecksumIEEE(answer)), 10))
	}
	h.Set("X-Amzn-Requestid", "FAULTPROXY0000000000000000000000000000000000000000000")
	w.WriteHeader(status)
	_, _ = w.Write(answer)
}
