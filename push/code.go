package push

// Code says why a connection was closed and whether to come back. On a WebSocket it is the close code.
type Code uint16

// Below 4500 a client may come back; from 4500 on, coming back is of no use.
const (
	CodeNormal   Code = 1000 // the client asked
	CodeProtocol Code = 1002 // the client broke the protocol
	CodePolicy   Code = 1008 // not allowed: another's topic, a SEND, no CONNECT in time, a bad ticket
	CodeTooBig   Code = 1009 // a frame over the limits
	CodeRestart  Code = 1012 // this node is being stopped: come back at the time given
	CodeLater    Code = 1013 // too many at once: come back after a while
	CodeSlow     Code = 4008 // did not take what was written within the time
	CodeBehind   Code = 4009 // too much that must not be lost was waiting: come back, it is said again
	CodeSilent   Code = 4010 // did not answer pings
	CodeEnded    Code = 4500 // the ticket has ended
	CodeRoomGone Code = 4501 // the room was deleted
)

func (c Code) String() string {
	switch c {
	case CodeNormal:
		return "bye"
	case CodeProtocol:
		return "protocol error"
	case CodePolicy:
		return "not allowed"
	case CodeTooBig:
		return "too big"
	case CodeRestart:
		return "restarting"
	case CodeLater:
		return "try later"
	case CodeSlow:
		return "reads too slowly"
	case CodeBehind:
		return "too far behind"
	case CodeSilent:
		return "silent"
	case CodeEnded:
		return "the ticket has ended"
	case CodeRoomGone:
		return "the room is gone"
	}
	return "closed"
}
