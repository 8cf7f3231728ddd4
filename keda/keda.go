package keda

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	pb "github.com/ushergo/usher/internal/externalscaler"
)

// ErrNoRoom is what [Rooms] answers for a room that does not exist.
var ErrNoRoom = errors.New("no such room")

// Demand is what a room asks for.
type Demand struct {
	Waiting int64 // living waiters
	Active  int64 // sessions inside
	// Instances that are recommended; negative: the room has no
	// capacity.per_instance and so none are.
	Instances int64
}

// Rooms says what rooms ask for. Safe for concurrent use.
type Rooms interface {
	// Demand of a room; [ErrNoRoom], or why it is not known now.
	Demand(ctx context.Context, room string) (Demand, error)
}

// Keeper may be implemented by [Rooms] too, for triggers with metric: workers.
type Keeper interface {
	// Workers is how many workers should hold connections, and whether there is any; or why it is not known now.
	Workers(ctx context.Context) (recommended int64, any bool, err error)
}

// Options of New. The zero value works.
type Options struct {
	// Credentials are those of TLS. Default: plain text.
	Credentials credentials.TransportCredentials
	// Every is how often a stream looks whether its room is active. Default 1 s.
	Every time.Duration
}

// Server answers KEDA on the listeners given to Serve.
type Server struct {
	*grpc.Server
	scaler *scaler
	once   sync.Once
}

// New makes a server for rooms.
func New(rooms Rooms, opts Options) *Server {
	if opts.Every <= 0 {
		opts.Every = time.Second
	}
	settings := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(64 << 10),
		grpc.MaxConcurrentStreams(1000),
		grpc.ConnectionTimeout(10 * time.Second),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Minute, Timeout: 20 * time.Second}),
	}
	if opts.Credentials != nil {
		settings = append(settings, grpc.Creds(opts.Credentials))
	}
	s := &Server{Server: grpc.NewServer(settings...), scaler: &scaler{rooms: rooms, every: opts.Every, stop: make(chan struct{})}}
	pb.RegisterExternalScalerServer(s.Server, s.scaler)
	return s
}

// Shutdown ends the streams, answers what is under way, and closes everything
// at the end of ctx.
func (s *Server) Shutdown(ctx context.Context) {
	s.once.Do(func() { close(s.scaler.stop) })
	done := make(chan struct{})
	go func() {
		s.GracefulStop()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		s.Stop()
		<-done
	}
}

type scaler struct {
	pb.UnimplementedExternalScalerServer
	rooms Rooms
	every time.Duration
	stop  chan struct{}
}

// trigger is what a ScaledObject asks for.
type trigger struct {
	room    string
	byCount bool // metric: instances, or workers
	keeper  bool // metric: workers
	target  int64
}

const usualTarget = 100

// parse reads a trigger's metadata. KEDA sends its own keys along, so unknown ones are let be.
func parse(ref *pb.ScaledObjectRef) (trigger, error) {
	bad := func(format string, args ...any) (trigger, error) {
		return trigger{}, status.Errorf(codes.InvalidArgument, "ScaledObject %s/%s: "+format, append([]any{ref.GetNamespace(), ref.GetName()}, args...)...)
	}
	m := ref.GetScalerMetadata()
	t := trigger{room: m["room"], target: usualTarget, keeper: m["metric"] == "workers"}
	if t.keeper && t.room != "" {
		return bad("metadata.room: metric: workers is of the keeper of connections and of no room; remove it")
	}
	if t.room == "" && !t.keeper {
		return bad("metadata.room is missing; name the usher room to scale by")
	}
	switch metric := m["metric"]; metric {
	case "", "waiting":
	case "instances", "workers":
		t.byCount, t.target = true, 1
	default:
		return bad("metadata.metric: %q is unknown; use waiting, instances or workers", metric)
	}
	if text, ok := m["target"]; ok && t.byCount {
		return bad("metadata.target belongs to metric: waiting; remove it")
	} else if ok {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 1 || n > math.MaxInt32 {
			return bad("metadata.target: %q is not a number of waiters; write it like \"100\"", text)
		}
		t.target = n
	}
	return t, nil
}

// name is the metric's, which an HPA shows.
func (t trigger) name() string {
	if t.keeper {
		return "usher-keeper-workers"
	}
	if t.byCount {
		return "usher-" + t.room + "-instances"
	}
	return "usher-" + t.room + "-waiting"
}

// demand asks for what a trigger goes by.
func (s *scaler) demand(ctx context.Context, ref *pb.ScaledObjectRef) (trigger, Demand, error) {
	t, err := parse(ref)
	if err != nil {
		return t, Demand{}, err
	}
	if t.keeper {
		d, err := s.workers(ctx)
		return t, d, err
	}
	d, err := s.rooms.Demand(ctx, t.room)
	switch {
	case errors.Is(err, ErrNoRoom):
		return t, d, status.Errorf(codes.NotFound, "usher has no room %q; GET /admin/v1/rooms lists them", t.room)
	case err != nil:
		return t, d, status.Error(codes.Unavailable, err.Error())
	case t.byCount && d.Instances < 0:
		return t, d, status.Errorf(codes.FailedPrecondition, "room %s has no capacity.per_instance, so no number of instances is recommended; give it one, or scale by metric: waiting", t.room)
	}
	return t, d, nil
}

func (s *scaler) workers(ctx context.Context) (Demand, error) {
	k, ok := s.rooms.(Keeper)
	if !ok {
		return Demand{}, status.Error(codes.FailedPrecondition, "this usher keeps no connections; add keeper: {} to its file, or ask one that does")
	}
	n, any, err := k.Workers(ctx)
	if err != nil {
		return Demand{}, status.Error(codes.Unavailable, err.Error())
	}
	d := Demand{Instances: n}
	if any {
		d.Active = 1
	}
	return d, nil
}

// IsActive implements the protocol: false lets KEDA scale to zero.
func (s *scaler) IsActive(ctx context.Context, ref *pb.ScaledObjectRef) (*pb.IsActiveResponse, error) {
	_, d, err := s.demand(ctx, ref)
	if err != nil {
		return nil, err
	}
	return &pb.IsActiveResponse{Result: d.active()}, nil
}

func (d Demand) active() bool { return d.Waiting > 0 || d.Active > 0 }

// StreamIsActive implements the protocol: says it at once and whenever it changes.
func (s *scaler) StreamIsActive(ref *pb.ScaledObjectRef, stream grpc.ServerStreamingServer[pb.IsActiveResponse]) error {
	tick := time.NewTicker(s.every)
	defer tick.Stop()
	var said *bool
	for {
		_, d, err := s.demand(stream.Context(), ref)
		if err != nil {
			return err // KEDA comes back
		}
		if now := d.active(); said == nil || *said != now {
			if err := stream.Send(&pb.IsActiveResponse{Result: now}); err != nil {
				return err
			}
			said = &now
		}
		select {
		case <-tick.C:
		case <-s.stop:
			return status.Error(codes.Unavailable, "this usher is stopping")
		case <-stream.Context().Done():
			return fmt.Errorf("the stream ended: %w", stream.Context().Err())
		}
	}
}

// GetMetricSpec implements the protocol.
func (s *scaler) GetMetricSpec(_ context.Context, ref *pb.ScaledObjectRef) (*pb.GetMetricSpecResponse, error) {
	t, err := parse(ref)
	if err != nil {
		return nil, err
	}
	return &pb.GetMetricSpecResponse{MetricSpecs: []*pb.MetricSpec{{MetricName: t.name(), TargetSize: t.target, TargetSizeFloat: float64(t.target)}}}, nil
}

// GetMetrics implements the protocol.
func (s *scaler) GetMetrics(ctx context.Context, r *pb.GetMetricsRequest) (*pb.GetMetricsResponse, error) {
	t, d, err := s.demand(ctx, r.GetScaledObjectRef())
	if err != nil {
		return nil, err
	}
	if name := r.GetMetricName(); name != t.name() {
		return nil, status.Errorf(codes.InvalidArgument, "metric %q is not of this trigger, whose is %s", name, t.name())
	}
	value := d.Waiting
	if t.byCount {
		value = d.Instances
	}
	return &pb.GetMetricsResponse{MetricValues: []*pb.MetricValue{{MetricName: t.name(), MetricValue: value, MetricValueFloat: float64(value)}}}, nil
}
