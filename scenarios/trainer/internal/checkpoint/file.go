package checkpoint

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
)

// A file is: magic, length of the header (4 bytes, little endian), the header
// as JSON, the parameters (8 bytes each, little endian), the SHA-256 of all
// that.
const (
	magic          = "dra-lab checkpoint 1\n"
	maxHeaderBytes = 4 << 10
	maxParams      = 64 << 20
)

type header struct {
	Run      string `json:"run"`
	Settings string `json:"settings"`
	Rank     int    `json:"rank"`
	Step     int64  `json:"step"`
	Params   int    `json:"params"`
}

func encode(h header, params []float64) ([]byte, error) {
	h.Params = len(params)
	head, err := json.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("encode header: %w", err)
	}
	if len(head) > maxHeaderBytes || len(params) > maxParams {
		return nil, fmt.Errorf("encode checkpoint: header of %d bytes, %d parameters", len(head), len(params))
	}
	data := make([]byte, 0, len(magic)+4+len(head)+8*len(params)+sha256.Size)
	data = append(data, magic...)
	data = binary.LittleEndian.AppendUint32(data, uint32(len(head)))
	data = append(data, head...)
	for _, p := range params {
		data = binary.LittleEndian.AppendUint64(data, math.Float64bits(p))
	}
	sum := sha256.Sum256(data)
	return append(data, sum[:]...), nil
}

func decode(data []byte) (header, []float64, error) {
	if len(data) < len(magic)+4+sha256.Size || !bytes.HasPrefix(data, []byte(magic)) {
		return header{}, nil, errors.New("not a checkpoint")
	}
	body, sum := data[:len(data)-sha256.Size], data[len(data)-sha256.Size:]
	if got := sha256.Sum256(body); !bytes.Equal(got[:], sum) {
		return header{}, nil, errors.New("checksum does not match")
	}
	body = body[len(magic):]
	length := int(binary.LittleEndian.Uint32(body))
	body = body[4:]
	if length > maxHeaderBytes || length > len(body) {
		return header{}, nil, fmt.Errorf("header of %d bytes in a body of %d", length, len(body))
	}
	var h header
	if err := json.Unmarshal(body[:length], &h); err != nil {
		return header{}, nil, fmt.Errorf("decode header: %w", err)
	}
	body = body[length:]
	if h.Params < 0 || h.Params > maxParams || len(body) != 8*h.Params {
		return header{}, nil, fmt.Errorf("%d bytes for %d parameters", len(body), h.Params)
	}
	params := make([]float64, h.Params)
	for i := range params {
		params[i] = math.Float64frombits(binary.LittleEndian.Uint64(body[8*i:]))
	}
	return h, params, nil
}
