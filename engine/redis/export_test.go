package redis

// RoomError is for tests of what no room's own calls bring about.
var RoomError = roomError
